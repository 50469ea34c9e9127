"""What the Ascend plugin of an installed MindSpore needs from CANN: names of functions, read from its binaries.

Two kinds of names matter. *Linked* names stand in the dynamic symbol table of the plugin and are defined by no
library of the wheel or of the C/C++ runtime: the plugin is bound at load time, so each of them must exist.
*Looked-up* names stand as plain strings in the plugin, which asks ``dlsym`` for them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from planner.errors import ValidationError

_NOT_FROM_CANN = re.compile(r"(Py|_Py|_ITM|__)")
_ACL_NAME = re.compile(rb"(?<!\w)(acl[a-zA-Z0-9_]{3,80})(?=\x00)")
_RUNTIME_LIBRARIES = ("libstdc++.so.6", "libm.so.6", "libgomp.so.1", "libgcc_s.so.1", "libc.so.6")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSymbols:
    """Names that stand-ins must define."""

    linked: tuple[tuple[str, str], ...]
    """(symbol, demangled name) of every function the plugin links."""
    looked_up: frozenset[str]
    """acl* functions looked up by name, operators excepted."""
    operators: frozenset[str]
    """aclnn* entry points, each with its GetWorkspaceSize."""


def plugin_symbols(mindspore_home: Path) -> PluginSymbols:
    """Names that the Ascend plugin below `mindspore_home` needs from CANN."""
    plugin = plugin_libraries(mindspore_home)
    defined = _defined_names(mindspore_home / "lib", plugin)
    needed = _names(plugin, "--undefined-only") - defined
    linked = sorted(name for name in needed if not _NOT_FROM_CANN.match(name))
    found = _strings(plugin, mindspore_home / "lib/libmindspore_pyboost.so") - set(linked)
    operators = {name for name in found if name.startswith("aclnn")}
    workspaces = {f"{name}GetWorkspaceSize" for name in operators if not name.endswith("GetWorkspaceSize")}
    looked_up = (found - operators) | {"acltdtCreateChannel", "aclSetCompileopt"}
    return PluginSymbols(
        linked=tuple(zip(linked, _demangle(linked), strict=True)),
        looked_up=frozenset(looked_up),
        operators=frozenset(operators | workspaces),
    )


def plugin_libraries(mindspore_home: Path) -> list[Path]:
    """Files of the Ascend plugin; a `ValidationError` when the wheel has none."""
    lib = mindspore_home / "lib"
    required = [
        *sorted(lib.glob("plugin/libmindspore_ascend.so.*"))[:1],
        lib / "plugin/libmindspore_ops_ascend.so",
        lib / "plugin/ascend/libmindspore_ascend_res_manager.so",
        lib / "plugin/ascend/libd_collective.so",
    ]
    absent = [path.name for path in required if not path.exists()]
    if absent or len(required) < 4:
        raise ValidationError(
            f"The MindSpore at {mindspore_home} has no Ascend plugin "
            f"(missing: {', '.join(absent) or 'libmindspore_ascend.so'}). "
            "DryRun needs the x86_64 Linux wheel of mindspore 2.9 or 2.10 from PyPI."
        )
    return [*required, *sorted(lib.glob("plugin/ascend/ms_kernels_symmetric_memory/**/*.so"))]


def _defined_names(lib: Path, plugin: Iterable[Path]) -> set[str]:
    own = [*lib.glob("*.so*"), *lib.glob("plugin/*.so*"), *lib.glob("plugin/ascend/*.so"), *plugin]
    return _names([*own, *_runtime_libraries()], "--defined-only")


def _runtime_libraries() -> list[Path]:
    """The C and C++ run-time libraries, found by asking the compiler."""
    found = []
    for name in _RUNTIME_LIBRARIES:
        answer = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        path = Path(answer.stdout.strip())
        if path.is_absolute() and path.exists():
            found.append(path.resolve())
    return found


def _names(libraries: Iterable[Path], flag: str) -> set[str]:
    names: set[str] = set()
    for path in libraries:
        text = subprocess.run(["nm", "-D", flag, str(path)], capture_output=True, text=True, check=False).stdout
        for line in text.splitlines():
            words = line.split()
            if words and (flag == "--defined-only" or words[0] == "U"):
                names.add(words[-1].split("@")[0])
    return names


def _demangle(names: list[str]) -> list[str]:
    text = "\n".join(names)
    answer = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()


def _strings(plugin: Iterable[Path], extra: Path) -> set[str]:
    names: set[str] = set()
    for path in [*plugin, extra]:
        if path.exists():
            names |= {name.decode() for name in _ACL_NAME.findall(path.read_bytes())}
    return names
