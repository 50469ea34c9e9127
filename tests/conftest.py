"""What all tests share."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import settings

#: Recorded files are data, also those that are Python; a program that a test starts is no test.
collect_ignore_glob = ["golden/*", "monitor/train.py"]

settings.register_profile("planner", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("planner")

# Tables and help are compared as text: the width must not depend on the terminal.
os.environ["COLUMNS"] = "80"
os.environ.pop("PLANNER_DEBUG", None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the real framework fail where it is missing, unless PLANNER_NO_MINDSPORE=1 says that this is meant."""
    if not item.get_closest_marker("dryrun") or os.environ.get("PLANNER_MINDSPORE_PYTHON"):
        return
    if importlib.util.find_spec("mindspore") is None and os.environ.get("PLANNER_NO_MINDSPORE") != "1":
        pytest.fail('needs MindSpore: pip install -e ".[mindspore]", or leave these out with -m "not dryrun"')
