"""Version of this package, apart from its face so that every room may name it."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
