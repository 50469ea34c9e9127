"""Errors of rows that a fit has not seen, left out by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final

import numpy as np

from planner.calibrate.fit import FloatArray, TimeCase, log_error
from planner.calibrate.time_sets import FittedSet, family_of, generation_of

Label = Callable[[TimeCase], Hashable]
LABELS: Final[Mapping[str, Label]] = {
    "shape": lambda case: case.shape,
    "release": lambda case: case.release,
    "source": lambda case: case.source,
    "case": lambda case: case.case_id,
}


def left_out_errors(fitted: FittedSet, kind: str) -> FloatArray:
    """log(predicted / measured) of left-out rows, with the generation's own constants where rows of it remain."""
    fit, label = fitted.fit, LABELS[kind]
    if fitted.spec.base or len({(family_of(c), generation_of(c)) for c in fit.cases}) == 1:
        return fit.left_out(label)
    labels = [label(case) for case in fit.cases]
    generations = [(family_of(case), generation_of(case)) for case in fit.cases]
    out = np.zeros(len(labels))
    for one in dict.fromkeys(labels):
        rows = np.array([other == one for other in labels])
        values = fit.without(rows)
        for i in np.flatnonzero(rows):
            mates = ~rows & np.array([other == generations[i] for other in generations])
            out[i] = log_error(fit.cases[i], fit.moved(values, mates))
    return out
