"""Why single published memory reports disagree with the model: printed beside them, never used in a prediction."""

from __future__ import annotations

from typing import Final

from planner.observe.published import TruthRow

#: Case of measurements/memory-cases.csv: words of its source, so that another file's rows are not mistaken for it, and
#: the reason.
_REASONS: Final = {
    "F17": (
        "finetune_qwen2_5_7b_8k.yaml",
        "0.5 % over: its loss holds two float32 tensors that the file's jit_level O1 may fuse; lists are those of O0",
    ),
    "I03": (
        "flattened gradient copy",
        "19.2 GiB allocated, 28.3 reserved of 31.7: fragmentation of a 2020 allocator, not need",
    ),
    "I16": (
        "152k vocabulary",
        "its steady state needs about half of the card; the report does not say where the rest went",
    ),
    "I18": (
        "while 59.48 GiB reserved",
        "9.0 GiB allocated, 59.5 reserved of 61.0: fragmentation, not need",
    ),
}


def reason_of(row: TruthRow) -> str:
    """What is known of a row's disagreement; empty when nothing is."""
    words, reason = _REASONS.get(row.case_id, ("", ""))
    return reason if words and words in row.source else ""
