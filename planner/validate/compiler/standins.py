"""Stand-in CANN libraries, built once per MindSpore version into the user's cache.

With them MindSpore's own DryRun (``MS_SIMULATION_LEVEL``) runs on an x86_64 Linux machine that has neither CANN nor
an NPU. Needs gcc, g++, nm and c++filt. A build happens in a temporary folder beside its destination and is renamed
into place, so an interrupted one leaves nothing behind that could be taken for whole.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import ValidationError
from planner.validate.compiler.standin_sources import sources
from planner.validate.compiler.symbols import plugin_libraries, plugin_symbols

_TOOLS = ("gcc", "g++", "nm", "c++filt")
_GENERATOR_FILES = ("standins.py", "standin_sources.py", "symbols.py")
_CORE_LIBRARY = "libge_runner.so"
_QUIET_LIBRARY = "libquiet.so"
_EMPTY_LIBRARIES = ("libgraph.so", "libhccl.so", "libruntime.so", "libplatform.so", "libc_sec.so", "libascend_hal.so")
_ACL_LIBRARIES = ("libascendcl.so", "libmsprofiler.so", "libacl_op_compiler.so", "libacl_tdt_channel.so")
_OPERATOR_LIBRARIES = (
    "libnnopbase.so",
    *(f"libopapi{suffix}.so" for suffix in ("", "_nn", "_math", "_cv", "_transformer", "_legacy")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cann:
    """The CANN libraries a DryRun loads: installed ones, or stand-ins."""

    root: Path
    """Folder of the toolkit, or of the stand-ins."""
    real: bool
    """True for an installed CANN."""

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with what MindSpore needs to find these libraries; unchanged for an installed CANN."""
        env = dict(base)
        if not self.real:
            _prepend(env, "LD_LIBRARY_PATH", self.root / "latest/lib64")
            _prepend(env, "PYTHONPATH", self.root / "python")
            _prepend(env, "LD_PRELOAD", self.root / "latest/lib64" / _QUIET_LIBRARY)
            env["ASCEND_OPP_PATH"] = str(self.root / "latest/opp")
        return env


def _prepend(env: dict[str, str], name: str, path: Path) -> None:
    env[name] = os.pathsep.join(filter(None, [str(path), env.get(name, "")]))


def find_cann(
    mindspore_home: Path,
    version: str,
    cache: Path,
    env: Mapping[str, str],
    progress: Callable[[str], None] | None = None,
) -> Cann:
    """The CANN that `env` names; else stand-ins for this MindSpore, built if the cache has none."""
    installed = installed_cann(env)
    if installed is not None:
        return Cann(root=installed, real=True)
    return Cann(root=ensure_standins(mindspore_home, version, cache, progress=progress), real=False)


def installed_cann(env: Mapping[str, str]) -> Path | None:
    """Root of a real CANN toolkit whose environment is set (``set_env.sh`` was sourced), or None."""
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        root = env.get(variable)
        if root and any((Path(root) / folder / "libascendcl.so").exists() for folder in ("lib64", "runtime/lib64")):
            return Path(root)
    return None


def ensure_standins(
    mindspore_home: Path,
    version: str,
    cache: Path,
    soc: str = "Ascend910B1",
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Folder of stand-ins for the MindSpore at `mindspore_home`; builds it once (about 20 s)."""
    _check_system()
    root = cache / "cann-standins" / f"mindspore-{version}-{_fingerprint(mindspore_home, soc)}"
    if root.exists():
        return root
    _check_tools()
    if progress:
        progress(f"CANN is not installed: building stand-in libraries once, into {root.parent}")
    root.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        _build(work, mindspore_home, soc)
        work.chmod(0o755)
        work.rename(root)
    except OSError:
        if not root.exists():  # else another process finished first: its build is as good
            raise
    except subprocess.CalledProcessError as error:
        raise ValidationError(f"Building the CANN stand-ins failed: {_last_line(error)}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return root


def _fingerprint(mindspore_home: Path, soc: str) -> str:
    """Changes when the generator, the wheel's plugin or the pretended device changes."""
    digest = hashlib.sha256(soc.encode())
    for name in _GENERATOR_FILES:
        digest.update((Path(__file__).parent / name).read_bytes())
    for path in plugin_libraries(mindspore_home):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def _check_system() -> None:
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise ValidationError(
            f"DryRun without CANN runs on x86_64 Linux only, this is {sys.platform} {platform.machine()}. "
            "Run it on an x86_64 Linux machine, or where CANN is installed (source its set_env.sh first)."
        )


def _check_tools() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise ValidationError(
            f"DryRun without CANN builds stand-in libraries and needs {', '.join(_TOOLS)}; "
            f"missing: {', '.join(missing)}. "
            "Install them (Debian/Ubuntu: apt-get install gcc g++ binutils), or use a machine with CANN."
        )


def _build(root: Path, mindspore_home: Path, soc: str) -> None:
    libraries = root / "latest/lib64"  # the plugin derives the CANN root from this path
    libraries.mkdir(parents=True)
    (root / "latest/opp").mkdir()
    (root / "latest/opp/lib64").symlink_to("../lib64")
    _write_hccl_package(root / "python/hccl")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources(plugin_symbols(mindspore_home), soc).items():
            (Path(folder) / name).write_text(text)
        _link_all(Path(folder), libraries)


def _write_hccl_package(package: Path) -> None:
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sys_version.py").write_text('__sys_version__ = "8.5.0"\n')


def _link_all(source: Path, libraries: Path) -> None:
    _link(libraries, _CORE_LIBRARY, [source / "linked.s", source / "status.cc"], core=False)
    _link(libraries, _QUIET_LIBRARY, [source / "quiet.c"], core=False)
    _link(libraries, "libprofapi.so", [source / "profiler.c"])
    for names, file in ((_EMPTY_LIBRARIES, "empty.c"), (_ACL_LIBRARIES, "acl.c"), (_OPERATOR_LIBRARIES, "operators.c")):
        _link(libraries, names[0], [source / file])
        for name in names[1:]:
            _link(libraries, name, [source / file])


def _link(libraries: Path, name: str, source: Sequence[Path], *, core: bool = True) -> None:
    """Link one shared library; all but the core one depend on the core, which holds the linked names."""
    compiler = "g++" if any(path.suffix == ".cc" for path in source) else "gcc"
    depends = ["-Wl,--no-as-needed", f"-L{libraries}", "-lge_runner", "-Wl,-rpath,$ORIGIN"] if core else []
    command = [
        compiler,
        "-w",
        "-shared",
        "-fPIC",
        "-o",
        str(libraries / name),
        *map(str, source),
        f"-Wl,-soname,{name}",
    ]
    subprocess.run([*command, *depends, "-ldl"], check=True, capture_output=True, text=True)


def _last_line(error: subprocess.CalledProcessError) -> str:
    """Why a tool failed: its last word before the compiler driver's own, such as "No space left on device"."""
    lines = [line for line in (error.stderr or "").strip().splitlines() if not line.startswith("collect2:")]
    return lines[-1] if lines else str(error)
