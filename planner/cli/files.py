"""Single files that commands write: checked before the work, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from planner.errors import EmitError


def check_target(out: str | None, *, force: bool) -> None:
    """Refuse an output that exists or cannot be written, before anything is searched."""
    if out is None:
        return
    path = Path(out)
    if path.is_symlink() or path.is_dir():
        raise EmitError(f"--out {out} is a {'symbolic link' if path.is_symlink() else 'folder'}; name a new file.")
    if path.exists() and not force:
        raise EmitError(f"--out {out} exists; name another file, or replace it with --force.")
    if not path.parent.is_dir():
        raise EmitError(f"--out {out}: the folder {path.parent} does not exist.")


def write(out: str, text: str) -> None:
    """Write the whole file or nothing."""
    import os
    import tempfile

    path = Path(out)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise EmitError(f"--out {out} cannot be written: {error.strerror}.") from None
