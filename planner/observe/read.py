"""One door: what a run left behind, in any known format, as an `Observation`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from planner.errors import SpecError
from planner.observe.folder import read_folder
from planner.observe.formats import recognised, unknown
from planner.observe.records import Observation, merge
from planner.observe.text import File


def read(path: str | Path) -> Observation:
    """Read a file or a folder; its format is found from its content.

    Raises
    ------
    SpecError
        No such path, nothing in it, no known format, or two jobs in one folder: the message names what was looked for.
    CalibrationError
        The format is known but its numbers cannot be measurements.
    """
    place = Path(path)
    if place.is_dir():
        return read_folder(place)
    if not place.exists():
        raise SpecError(f"{place} does not exist.")
    file = File(place)
    form = recognised(file)
    if form is None:
        raise unknown(file)
    return form.read(file)


def read_all(paths: Iterable[str | Path]) -> Observation:
    """Read several paths as one observation."""
    places = [Path(path) for path in paths]
    return merge((read(place) for place in places), places[0].parent if len(places) > 1 else places[0])
