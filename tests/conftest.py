"""What all tests share."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import settings

#: Recorded files are data, also those that are Python.
collect_ignore_glob = ["golden/*"]

settings.register_profile("planner", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("planner")

# Tables and help are compared as text: the width must not depend on the terminal.
os.environ["COLUMNS"] = "80"
os.environ.pop("PLANNER_DEBUG", None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the real framework fail, and do not vanish, where it is not installed."""
    if item.get_closest_marker("dryrun") and importlib.util.find_spec("mindspore") is None:
        pytest.fail('needs MindSpore: pip install -e ".[mindspore]", or leave these out with -m "not dryrun"')
