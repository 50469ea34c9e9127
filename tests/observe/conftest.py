from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the real samples; its README states where each comes from."""
    return Path(__file__).parent / "data"
