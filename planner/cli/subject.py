"""The plan a question is about: a file, or the best one of a described job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli import ask, parse
from planner.cli.options import ClusterOptions, ModelOptions, PinOptions, WorkloadOptions
from planner.cli.output import searching

if TYPE_CHECKING:
    from planner.cost.estimate import Estimate
    from planner.search.request import Request


def subject(
    plan: str | None,
    model: ModelOptions,
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    pins: PinOptions,
    cards: str | None,
    *,
    accept_unread: bool = False,
    quiet: bool = False,
) -> tuple[Request, Estimate, tuple[str, ...]]:
    """Request, estimate and unread settings of a file, or of the best plan for the options.

    ``--tokens`` may be given beside a file, which has no budget of its own.
    """
    from planner import api
    from planner.search.suggest import search

    if plan is None:
        request = parse.searched(ask.request_from(model, cluster, workload, ask.cards_from(cards)), pins)
        with searching(quiet=quiet) as progress:
            found = search(replace(request, top=1), progress)
        return found.request, found.estimates.row(0), ()
    beside = replace(workload, tokens=None)
    request, strategy, unread = ask.file_from(plan, model, cluster, beside, pins, cards, accept_unread=accept_unread)
    if workload.tokens is not None:
        request = replace(request, workload=replace(request.workload, tokens=parse.tokens(workload.tokens)))
    return request, api.judged(request, strategy), unread
