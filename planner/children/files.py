"""Files that appear whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` through a temporary file beside it, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(content)
            file.close()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
