"""Stand-in CANN libraries: what they contain, when they are built, and what is said when they cannot be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planner.errors import ValidationError
from planner.validate.compiler import standins
from planner.validate.compiler.standin_sources import acl_source, linked_source, operator_source, sources
from planner.validate.compiler.standins import Cann, ensure_standins, find_cann, installed_cann
from planner.validate.compiler.symbols import PluginSymbols, plugin_libraries, plugin_symbols

PLUGIN_SOURCE = """
extern int aclrtMalloc(void **, unsigned long);
extern const char *aclrtGetSocName(void);
extern void _ZN2ge8OperatorC1Ev(void *);
const char *asked = "\\0aclrtGetDeviceCount\\0aclnnAdd\\0";
int use(void) { void *p; _ZN2ge8OperatorC1Ev(&p); aclrtGetSocName(); return aclrtMalloc(&p, 1); }
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder shaped like the mindspore package, whose plugin links three CANN functions and looks two up."""
    plugin = tmp_path / "mindspore/lib/plugin"
    (plugin / "ascend").mkdir(parents=True)
    source = tmp_path / "plugin.c"
    source.write_text(PLUGIN_SOURCE)
    names = (
        "libmindspore_ascend.so.2",
        "libmindspore_ops_ascend.so",
        "ascend/libmindspore_ascend_res_manager.so",
        "ascend/libd_collective.so",
    )
    for name in names:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(plugin / name), str(source)], check=True)
    return tmp_path / "mindspore"


def test_symbols_are_read_from_the_plugin(home: Path) -> None:
    found = plugin_symbols(home)
    assert dict(found.linked) == {
        "_ZN2ge8OperatorC1Ev": "ge::Operator::Operator()",
        "aclrtGetSocName": "aclrtGetSocName",
        "aclrtMalloc": "aclrtMalloc",
    }
    assert "aclrtGetDeviceCount" in found.looked_up
    assert found.operators == {"aclnnAdd", "aclnnAddGetWorkspaceSize"}


def test_built_libraries_answer(home: Path, tmp_path: Path) -> None:
    libraries = ensure_standins(home, "2.9.0", tmp_path / "cache") / "latest/lib64"
    core = ctypes.CDLL(str(libraries / "libge_runner.so"))
    core.aclrtGetSocName.restype = ctypes.c_char_p
    assert core.aclrtGetSocName() == b"Ascend910B1"
    operator = (ctypes.c_int64 * 3)(7, 7, 7)
    core._ZN2ge8OperatorC1Ev(operator)
    assert list(operator) == [7, 0, 0]
    acl = ctypes.CDLL(str(libraries / "libascendcl.so"))
    count = ctypes.c_uint()
    assert acl.aclrtGetDeviceCount(ctypes.byref(count)) == 0
    assert count.value == 8
    operators = ctypes.CDLL(str(libraries.parent / "opp/lib64/libopapi.so"))
    assert operators.aclnnAddGetWorkspaceSize() == 0
    operators.aclCreateTensor.restype = ctypes.c_void_p
    assert operators.aclCreateTensor()


POLLING_PLUGIN = """
#include <pthread.h>
static volatile int polled;
static void *poll(void *unused) { polled = 1; return unused; }
int start(void) { pthread_t thread; return pthread_create(&thread, 0, poll, 0); }
int has_polled(void) { return polled; }
"""
START_AND_ASK = """
import ctypes, sys, time
plugin = ctypes.CDLL(sys.argv[1])
assert plugin.start() == 0
time.sleep(0.5)
print(plugin.has_polled())
"""


@pytest.mark.parametrize(("name", "polls"), [("libmindspore_ascend_res_manager.so", "0"), ("libother.so", "1")])
def test_polling_threads_of_the_plugin_sleep(home: Path, tmp_path: Path, name: str, polls: str) -> None:
    root = ensure_standins(home, "2.9.0", tmp_path / "cache")
    (tmp_path / "poll.c").write_text(POLLING_PLUGIN)
    library = tmp_path / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "poll.c")], check=True)
    env = Cann(root=root, real=False).environment(os.environ)
    command = [sys.executable, "-c", START_AND_ASK, str(library)]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == polls


def test_built_once_and_atomically(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    first = ensure_standins(home, "2.9.0", cache)
    monkeypatch.setattr(standins, "_build", lambda *_: pytest.fail("built twice"))
    assert ensure_standins(home, "2.9.0", cache) == first
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_two_builders_at_once_leave_one_whole_build(home: Path, tmp_path: Path) -> None:
    cache, found = tmp_path / "cache", []
    threads = [threading.Thread(target=lambda: found.append(ensure_standins(home, "2.9.0", cache))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert (found[0] / "latest/lib64/libopapi.so").exists()
    assert len(list(found[0].parent.iterdir())) == 1


def test_an_interrupted_build_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(root: Path, *_: object) -> None:
        (root / "half").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(standins, "_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_standins(home, "2.9.0", tmp_path / "cache")
    assert list((tmp_path / "cache/cann-standins").iterdir()) == []


@pytest.mark.parametrize("missing", ["gcc", "nm"])
def test_missing_tools_are_named(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(standins.shutil, "which", lambda tool: None if tool == missing else f"/bin/{tool}")
    with pytest.raises(ValidationError, match=rf"missing: {missing}\. Install"):
        ensure_standins(home, "2.9.0", tmp_path / "cache")


def test_a_build_is_announced_once(home: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for _ in range(2):
        ensure_standins(home, "2.9.0", tmp_path / "cache", progress=lines.append)
    assert lines == [
        f"CANN is not installed: building stand-in libraries once, into {tmp_path / 'cache/cann-standins'}"
    ]


def test_other_machines_are_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standins.platform, "machine", lambda: "aarch64")
    with pytest.raises(ValidationError, match="x86_64 Linux only"):
        ensure_standins(home, "2.9.0", tmp_path / "cache")


def test_a_compiler_error_is_reported(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standins, "sources", lambda *_: {**sources(plugin_symbols(home), "x"), "acl.c": "int broken("})
    with pytest.raises(ValidationError, match="Building the CANN stand-ins failed"):
        ensure_standins(home, "2.9.0", tmp_path / "cache")
    assert list((tmp_path / "cache/cann-standins").iterdir()) == []


def test_a_full_disk_is_named_and_not_the_compiler_driver() -> None:
    words = "ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status\n"
    error = standins.subprocess.CalledProcessError(1, ["gcc"], stderr=words)
    assert standins._last_line(error) == "ld: final link failed: No space left on device"
    assert "exit status 1" in standins._last_line(standins.subprocess.CalledProcessError(1, ["gcc"], stderr=""))


def test_a_wheel_without_plugin(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no Ascend plugin"):
        plugin_libraries(tmp_path)


def test_installed_cann_is_used(home: Path, tmp_path: Path) -> None:
    toolkit = tmp_path / "toolkit"
    (toolkit / "lib64").mkdir(parents=True)
    (toolkit / "lib64/libascendcl.so").touch()
    env = {"ASCEND_HOME_PATH": str(toolkit), "LD_LIBRARY_PATH": "/a"}
    cann = find_cann(home, "2.9.0", tmp_path / "cache", env)
    assert cann == Cann(root=toolkit, real=True)
    assert cann.environment(env) == env
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("env", [{}, {"ASCEND_HOME_PATH": ""}, {"ASCEND_HOME_PATH": "/nowhere"}])
def test_no_installed_cann(env: dict[str, str]) -> None:
    assert installed_cann(env) is None


def test_environment_of_stand_ins() -> None:
    env = Cann(root=Path("/s"), real=False).environment({"LD_LIBRARY_PATH": "/a", "HOME": "/h"})
    assert env["LD_LIBRARY_PATH"] == os.pathsep.join(["/s/latest/lib64", "/a"])
    assert env["LD_PRELOAD"] == "/s/latest/lib64/libquiet.so"
    assert env["PYTHONPATH"] == "/s/python"
    assert env["ASCEND_OPP_PATH"] == "/s/latest/opp"
    assert env["HOME"] == "/h"


def test_return_conventions() -> None:
    linked = (
        ("_name", "ge::Operator::GetName() const"),
        ("_dims", "ge::Shape::GetDims() const"),
        ("_set", "ge::Operator::SetAttr(char const*, long)"),
        ("_other", "aclrtSynchronizeDevice"),
    )
    text = linked_source(PluginSymbols(linked=linked, looked_up=frozenset(), operators=frozenset()), "Soc9")
    bodies = {block.split(":")[0]: block for block in text.split(".globl ")[1:]}
    assert "movb $0,16(%rdi)" in bodies["_name\n.type _name,@function\n_name"]
    assert bodies["_dims\n.type _dims,@function\n_dims"].count("movq $0") == 3
    assert "movq %rdi,%rax" in bodies["_set\n.type _set,@function\n_set"]
    assert "xorl %eax,%eax" in bodies["_other\n.type _other,@function\n_other"]
    assert '"Soc9"' in text


def test_no_function_is_defined_twice() -> None:
    symbols = PluginSymbols(
        linked=(),
        looked_up=frozenset({"aclrtGetMemInfo", "aclCreateTensor", "aclFoo"}),
        operators=frozenset({"aclnnInit"}),
    )
    for text in (acl_source(symbols), operator_source(symbols)):
        names = [line.split("(")[0].split()[-1].strip("*") for line in text.splitlines() if line.endswith("}")]
        assert len(names) == len(set(names))
    assert "aclCreateTensor" not in acl_source(symbols)
