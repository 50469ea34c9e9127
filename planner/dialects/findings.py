"""What a check finds: a place, the name of the fault, why it matters and what to do."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Final

from planner.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """One fault.

    Attributes
    ----------
    file : str
    line : int
        From 1.
    rule : str
        Name of the fault, for instance ``offset-sum``.
    why : str
        What the framework does with it.
    fix : str
        What to write instead.
    """

    file: str
    line: int
    rule: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.why} {self.fix}"


class NotUnderstoodError(SpecError):
    """A file of which nothing was understood, so that nothing can be said about its faults."""


@functools.cache
def known_keys() -> dict[str, frozenset[str]]:
    """Keys of each section that the frameworks know."""
    path = resources.files("planner.dialects.graph") / "keys.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    return {name: frozenset(keys) for name, keys in body.items() if name != "about"}


@functools.cache
def known_classes() -> dict[str, frozenset[str]]:
    """Names of the classes that MindFormers registers, by kind."""
    path = resources.files("planner.dialects.graph") / "classes.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    return {kind: frozenset(names.split()) for kind, names in body.items() if kind != "about"}


#: Letters by which a misspelt name differs from the real one at most, and from which length on it may be one more.
_TYPO_LETTERS: Final = 2
_LONG: Final = 24


def meant(name: str, known: Iterable[str]) -> str:
    """The known name that another one was meant to be: other capitals, or a few letters off; else empty.

    >>> meant("AdmaW", ("Adam", "AdamW")), meant("MFLosMonitor", ("MFLossMonitor",)), meant("Mine", ("Muon",))
    ('AdamW', 'MFLossMonitor', '')
    """
    most = min(_TYPO_LETTERS + (len(name) >= _LONG), (len(name) + 3) // 4)
    near = [real for real in known if abs(len(real) - len(name)) <= most]
    scored = [(_letters_apart(name.lower(), real.lower()), abs(len(real) - len(name)), real) for real in near]
    letters, _, real = min(scored, default=(most + 1, 0, ""))
    return real if letters <= most else ""


def _letters_apart(one: str, other: str) -> int:
    """Letters inserted, removed or replaced between two words; two that changed places count as two."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, another in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != another))
    return row[-1]


def nearest(name: str, known: Iterable[str]) -> str:
    """Advice for a name that is not known."""
    near = difflib.get_close_matches(name, list(known), 1, 0.7)
    return f"Did you mean {near[0]}?" if near else "Remove it."


#: Names that circulate in articles but exist in neither MindSpore 2.10.0 nor MindFormers, and what does exist.
UNREAL_NAMES = {
    "tensor_parallel_mode": "shard operators, or use parallel_config.model_parallel of MindFormers",
    "tensor_parallel_split_num": "use parallel_config.model_parallel of MindFormers",
    "high_dimension_tensor_parallel": "use parallel_config.model_parallel of MindFormers",
    "communication_fusion": "the key is comm_fusion",
    "mixed_precision": "use mindspore.amp.auto_mixed_precision, or the data types of the model section",
    "communication_subgraph_reuse": "there is no such switch",
    "enable_heterogeneous_memory": "use swap_config of MindFormers, or Cell.offload",
    "memory_offload": "use swap_config of MindFormers, or Cell.offload",
    "HeteroConfig": "use swap_config of MindFormers, or Cell.offload",
    "set_grad_recompute": "the method is Cell.recompute()",
    "flatten_weights": "there is no such method",
    "ClipByValue": "use mindspore.ops.clip_by_value",
    "ClipByGlobalNorm": "use mindspore.ops.clip_by_global_norm",
    "PipelineParallel": "the mode stays semi_auto_parallel; stages come from AutoParallel.pipeline(stages=...)",
    "PIPELINE_PARALLEL": "the mode stays semi_auto_parallel; stages come from AutoParallel.pipeline(stages=...)",
    "pipeline_parallel_mode": "the mode stays semi_auto_parallel; stages come from AutoParallel.pipeline(stages=...)",
    "autocast": "use mindspore.amp.auto_mixed_precision",
}
#: Methods among them, whatever object they are called on.
UNREAL_METHODS = {name: UNREAL_NAMES[name] for name in ("set_grad_recompute", "flatten_weights")}
#: Members of modules that do not exist there, though the last name does elsewhere.
UNREAL_MEMBERS = {
    "mindspore.Trainer": "use mindspore.train.Model, or mindformers.Trainer",
    "mindspore.train.Trainer": "use mindspore.train.Model, or mindformers.Trainer",
    "mindspore.nn.transformer.TransformerOpParallelConfig": "it lives in mindformers.modules.transformer",
    "mindspore.dataset.prefetch": "use mindspore.dataset.config.set_prefetch_size",
}
