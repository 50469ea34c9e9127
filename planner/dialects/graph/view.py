"""A MindFormers graph-mode file as its rules see it."""

from __future__ import annotations

from typing import Any

from planner.dialects.findings import Finding
from planner.dialects.text.yaml_read import Document


class View:
    """Numbers and sections of a graph-mode file, with 1 for whatever is absent or no number."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.model = self.section("model", "model_config")
        self.degrees, self.parallel = self.section("parallel_config"), self.section("parallel")
        self.runner, self.recompute = self.section("runner_config"), self.section("recompute_config")
        self.legacy = document.root.get("use_legacy", True) is not False
        self.dp, self.tp = self.degree("data_parallel"), self.degree("model_parallel")
        self.pp, self.cp = self.degree("pipeline_stage"), self.degree("context_parallel")
        self.ep, self.micro_batches = self.degree("expert_parallel"), self.degree("micro_batch_num")
        self.pipeline = self._mapping(self.parallel.get("pipeline_config"))
        self.vpp_written = count(self.model.get("pp_interleave_num"), 1)
        self.interleave = self.pipeline.get("pipeline_interleave") is True
        self.vpp = self.vpp_written if self.interleave else 1

    def section(self, *path: str) -> dict[str, Any]:
        """A section, or an empty one."""
        node: Any = self.document.root
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        return self._mapping(node)

    @staticmethod
    def _mapping(node: Any) -> dict[str, Any]:
        return node if isinstance(node, dict) else {}

    def degree(self, key: str) -> int:
        """A degree of parallel_config."""
        return count(self.degrees.get(key), 1)

    def size(self, *names: str) -> int:
        """A size of the model section under the first name given; 0 when absent."""
        return next((count(self.model[n], 0) for n in names if self.model.get(n) is not None), 0)

    def finding(self, path: tuple[str, ...], rule: str, why: str, fix: str) -> Finding:
        """Finding at the line of a key."""
        return Finding(file=self.document.source, line=self.document.line(*path), rule=rule, why=why, fix=fix)


def count(value: Any, default: int) -> int:
    """`value` when it is a positive whole number, else `default`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def divisors(number: int) -> str:
    """Divisors of a number, as text."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
