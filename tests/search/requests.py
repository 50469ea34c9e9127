"""Requests that the search tests share."""

from __future__ import annotations

from functools import lru_cache

from planner.cluster.load import calibration, hardware
from planner.cluster.records import Cluster, Hardware
from planner.model.load import find
from planner.model.records import Model, Workload
from planner.search.suggest import Request, Result, search


@lru_cache
def profile(name: str) -> Hardware:
    return hardware(name)


def request(
    model: str | Model,
    cards: int,
    seq: int = 4096,
    batch: int = 256,
    chip: str = "910b2",
    framework: str = "mindformers",
    workload: dict[str, object] | None = None,
    **fields: object,
) -> Request:
    found = model if isinstance(model, Model) else find(model)
    where = profile(chip)
    settings = {"seq": seq, "global_batch": batch, "framework": framework} | (workload or {})
    return Request(
        model=found,
        workload=Workload(**settings),  # type: ignore[arg-type]
        cluster=Cluster(hardware=where, devices=cards),
        calibration=calibration(where, framework),
        **fields,  # type: ignore[arg-type]
    )


@lru_cache
def answer(model: str, cards: int, seq: int, batch: int) -> Result:
    return search(request(model, cards, seq, batch))
