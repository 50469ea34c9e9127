"""Assembler and C text of the CANN stand-ins: functions that resolve and report success.

DryRun launches nothing on a device, so no stand-in does any work. What each has to return was found by making the
plugin of MindSpore 2.9 and 2.10 load and run (docs/dryrun.md, "Stand-ins"): C++ functions that return an object by
value must leave an empty one behind, constructors must leave an empty shared pointer, queries must give plausible
device facts.
"""

from __future__ import annotations

import re

from planner.validate.compiler.symbols import PluginSymbols

_STATUS_FACTORY = "_ZN2ge13StatusFactory8InstanceEv"
_SHARED_POINTER_OFFSET = {"Shape": 0, "TensorDesc": 0, "Tensor": 0, "AscendString": 0, "Operator": 8}
_CONSTRUCTOR = re.compile(r"ge::(\w+)::(\w+)\(")
_RETURNS_STRING = re.compile(r"::(GetName|GetOpType)\(\) const$")
_RETURNS_POINTER_PAIR = re.compile(r"::(GetShape|GetTensorDesc)\(\) const")
_RETURNS_VECTOR = re.compile(r"::GetDims\(\) const|CreateOperator")
_RETURNS_SELF = re.compile(r"::(SetAttr|SetInput|UpdateInputDesc|SetDim)")

_RETURN_SELF = (" movq %rdi,%rax", " ret")
_RETURN_ZERO = (" xorl %eax,%eax", " ret")
_RETURN_SOC = (" leaq soc(%rip),%rax", " ret")
_RETURN_EMPTY_STRING = (
    " leaq 16(%rdi),%rax",
    " movq %rax,(%rdi)",
    " movq $0,8(%rdi)",
    " movb $0,16(%rdi)",
    *_RETURN_SELF,
)

DEVICE_MEMORY_GIB = 1024
"""Device memory the stand-ins report: larger than any card, so that a plan that does not fit still gets its peak."""

_DEVICE_FUNCTIONS = {
    "aclrtGetMemInfo": (f"int aclrtGetMemInfo(int a,size_t*f,size_t*t){{*f=*t={DEVICE_MEMORY_GIB}UL<<30;return 0;}}"),
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned*c){*c=8;return 0;}",
    "aclrtCreateContext": "int aclrtCreateContext(void**c,int d){*c=(void*)0x1000;return 0;}",
    "aclrtGetCurrentContext": "int aclrtGetCurrentContext(void**c){*c=(void*)0x1000;return 0;}",
    "aclrtCreateStreamWithConfig": (
        "int aclrtCreateStreamWithConfig(void**c,unsigned p,unsigned f)"
        "{static long n=0x2000;*c=(void*)(n+=16);return 0;}"
    ),
    "aclrtCreateEventWithFlag": (
        "int aclrtCreateEventWithFlag(void**c,unsigned f){static long n=0x900000;*c=(void*)(n+=16);return 0;}"
    ),
    "aclrtGetRunMode": "int aclrtGetRunMode(int*m){*m=1;return 0;}",
    "aclrtDeviceGetStreamPriorityRange": "int aclrtDeviceGetStreamPriorityRange(int*a,int*b){*a=0;*b=7;return 0;}",
    "aclDataTypeSize": (
        "size_t aclDataTypeSize(int t){switch(t){case 1:case 6:case 7:case 27:return 2;case 2:case 4:case 12:return 1;"
        "case 9:case 10:case 11:return 8;default:return 4;}}"
    ),
}
_MAKERS = frozenset(
    f"aclCreate{kind}" for kind in ("BoolArray", "FloatArray", "IntArray", "Scalar", "Tensor", "TensorList")
)
_OPERATOR_LIBRARY_EXTRAS = frozenset(
    "aclnnInit aclnnFinalize InitHugeMemThreadLocal UnInitHugeMemThreadLocal ReleaseHugeMem InitPTACacheThreadLocal "
    "UnInitPTACacheThreadLocal SetPTAHashKey CanUsePTACache PTAGetExecCache PTAFindExecCache AddTensorAddrToCachedList "
    "aclDestroyTensor aclDestroyScalar aclDestroyIntArray aclDestroyFloatArray aclDestroyBoolArray "
    "aclDestroyTensorList "
    "aclDestroyAclOpExecutor aclSetAclOpExecutorRepeatable aclSetTensorAddr aclSetDynamicTensorAddr aclGetViewShape "
    "aclInitTensor".split()
)
_PROFILER_FUNCTIONS = (
    "MsprofReportApi MsprofReportEvent MsprofReportCompactInfo MsprofReportAdditionalInfo MsprofRegTypeInfo "
    "MsprofRegisterCallback MsprofSysCycleTime MsprofGetHashId MsprofSetDeviceIdByGeModelIdx "
    "MsprofUnsetDeviceIdByGeModelIdx "
    "MsprofNotifySetDevice MsprofInit MsprofFinalize MsprofStart MsprofStop MsprofSetConfig MsprofStr2Id"
).split()

_STATUS_STORE = """#include <cstdint>
#include <map>
#include <string>
namespace ge {
struct StatusFactory { static StatusFactory *Instance(); };
struct Store { std::map<uint32_t, std::string> descriptions; char spare[256]; };
StatusFactory *StatusFactory::Instance() { static Store store; return reinterpret_cast<StatusFactory *>(&store); }
}
"""

_QUIET_THREADS = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* The plugin starts a thread per stream that polls for device callbacks. Under simulation there are none and
   the poll returns at once: ten threads would take the processor from the compile. They sleep instead. */
typedef int (*creator)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static void *sleep_for_ever(void *unused) {
  for (;;) pause();
  return unused;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  static creator create;
  if (!create) create = (creator)dlsym(RTLD_NEXT, "pthread_create");
  Dl_info caller;
  if (dladdr(__builtin_return_address(0), &caller) && caller.dli_fname &&
      strstr(caller.dli_fname, "libmindspore_ascend_res_manager"))
    start = sleep_for_ever;
  return create(thread, attributes, start, argument);
}
"""


def sources(symbols: PluginSymbols, soc: str) -> dict[str, str]:
    """Source files of the stand-ins, by file name."""
    return {
        "linked.s": linked_source(symbols, soc),
        "status.cc": _STATUS_STORE,
        "acl.c": acl_source(symbols),
        "operators.c": operator_source(symbols),
        "profiler.c": "\n".join(_returning_zero(name) for name in _PROFILER_FUNCTIONS),
        "quiet.c": _QUIET_THREADS,
        "empty.c": "",
    }


def linked_source(symbols: PluginSymbols, soc: str) -> str:
    """Assembler of every function the plugin links (x86_64, System V calling convention)."""
    lines = [".text"]
    for symbol, name in symbols.linked:
        if symbol != _STATUS_FACTORY:  # an initialiser fills its map: status.cc holds a live one
            lines += [f".globl {symbol}", f".type {symbol},@function", f"{symbol}:", *_body(symbol, name)]
    lines += [".section .rodata", f'soc: .string "{soc}"', '.section .note.GNU-stack,"",@progbits', ""]
    return "\n".join(lines)


def _body(symbol: str, name: str) -> tuple[str, ...]:
    """Instructions of one stand-in, chosen by what its C++ signature returns."""
    constructor = _CONSTRUCTOR.match(name)
    if constructor and constructor[1] == constructor[2]:
        offset = _SHARED_POINTER_OFFSET.get(constructor[1])
        return _RETURN_SELF if offset is None else _zeroed(offset, 2)
    if _RETURNS_STRING.search(name):
        return _RETURN_EMPTY_STRING
    if _RETURNS_POINTER_PAIR.search(name):
        return _zeroed(0, 2)
    if _RETURNS_VECTOR.search(name):
        return _zeroed(0, 3)
    if _RETURNS_SELF.search(name):
        return _RETURN_SELF
    return _RETURN_SOC if symbol == "aclrtGetSocName" else _RETURN_ZERO


def _zeroed(offset: int, words: int) -> tuple[str, ...]:
    return (*(f" movq $0,{offset + 8 * word}(%rdi)" for word in range(words)), *_RETURN_SELF)


def acl_source(symbols: PluginSymbols) -> str:
    """C text of the acl* functions that are looked up by name."""
    names = sorted((symbols.looked_up | set(_DEVICE_FUNCTIONS)) - _MAKERS)
    return "\n".join(
        [
            "#include <stddef.h>",
            *(_DEVICE_FUNCTIONS.get(name) or _returning_zero(name) for name in names),
        ]
    )


def operator_source(symbols: PluginSymbols) -> str:
    """C text of the operator library: every aclnn entry point, and makers that return an object."""
    names = sorted(symbols.operators | _OPERATOR_LIBRARY_EXTRAS)
    makers = [f"void*{name}(){{return object;}}" for name in sorted(_MAKERS)]
    return "\n".join(["static char object[4096];", *makers, *map(_returning_zero, names)])


def _returning_zero(name: str) -> str:
    return f"long {name}(){{return 0;}}"
