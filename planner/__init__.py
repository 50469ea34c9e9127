"""Which parallel strategy, will it fit, how fast: before a MindSpore training job on Ascend is launched.

>>> import planner
>>> planner.Strategy.__module__
'planner.cost.strategies'

Names are imported when they are first used, so that ``import planner`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import estimate, suggest
    from planner.cluster.records import Cluster
    from planner.cost.estimate import Estimate
    from planner.cost.strategies import Strategy
    from planner.errors import (
        CalibrationError,
        EmitError,
        InfeasibleError,
        PlannerError,
        PredictedOutOfMemory,
        ProfileError,
        SpecError,
        ValidationError,
    )
    from planner.estimator import MemoryEstimator
    from planner.model.records import Model, Workload
    from planner.plan import Plan
    from planner.version import __version__ as __version__

#: Where each public name lives.
_HOMES = {
    "__version__": "planner.version",
    "suggest": "planner.api",
    "estimate": "planner.api",
    "MemoryEstimator": "planner.estimator",
    "Model": "planner.model.records",
    "Workload": "planner.model.records",
    "Cluster": "planner.cluster.records",
    "Strategy": "planner.cost.strategies",
    "Estimate": "planner.cost.estimate",
    "Plan": "planner.plan",
    "PlannerError": "planner.errors",
    "SpecError": "planner.errors",
    "ProfileError": "planner.errors",
    "InfeasibleError": "planner.errors",
    "CalibrationError": "planner.errors",
    "EmitError": "planner.errors",
    "ValidationError": "planner.errors",
    "PredictedOutOfMemory": "planner.errors",
}

__all__ = [
    "CalibrationError",
    "Cluster",
    "EmitError",
    "Estimate",
    "InfeasibleError",
    "MemoryEstimator",
    "Model",
    "Plan",
    "PlannerError",
    "PredictedOutOfMemory",
    "ProfileError",
    "SpecError",
    "Strategy",
    "ValidationError",
    "Workload",
    "estimate",
    "suggest",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
