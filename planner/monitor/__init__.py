"""Watching a run: a ledger of its steps, a callback that writes it, rules that find what is wrong.

``planner.monitor.PlanMonitor`` is the callback; nothing of it is imported before it is asked for, and it needs neither
the search nor the files of other programs.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "PlanMonitor":
        from planner.monitor.callback import PlanMonitor

        return PlanMonitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
