"""Reading fields of foreign mappings, with one clear error for each way they can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from planner.errors import SpecError

#: Largest legal value of each size.  Wide enough for any network anybody has proposed to train, narrow enough to
#: catch a slipped digit or a parameter count given as a width before it becomes a table of that length.
LIMITS: Final[dict[str, int]] = {
    "layers": 10_000,
    "hidden": 1_048_576,
    "ffn": 4_194_304,
    "vocab": 16_777_216,
    "heads": 65_536,
    "kv_heads": 65_536,
    "head_dim": 65_536,
    "experts": 65_536,
    "topk": 65_536,
    "expert_ffn": 4_194_304,
    "shared_ffn": 4_194_304,
    "mtp_layers": 64,
    "learned_positions": 1_073_741_824,
    "max_seq": 1_073_741_824,
    "q_lora_rank": 1_048_576,
    "kv_lora_rank": 1_048_576,
}

_REQUIRED: Final = object()


def check_size(value: Any, size: str, label: str, *, minimum: int = 1) -> int:
    """A whole number between ``minimum`` and the limit of its kind.

    Parameters
    ----------
    size : str
        Which size it is, a key of `LIMITS`.
    label : str
        How the message names it: where it stands and the field's own name.

    Examples
    --------
    >>> check_size(4096, "hidden", "hidden")
    4096
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    limit = LIMITS[size]
    legal = f"a whole number from {minimum} to {limit}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{label} is {value!r}; it must be {legal}.")
    if not minimum <= value <= limit:
        raise SpecError(f"{label}={value} is out of range; legal: {legal}.")
    return value


class Fields:
    """A foreign mapping with typed access; every error says where the mapping comes from.

    Parameters
    ----------
    mapping : mapping
        For example a parsed config.json.
    where : str
        Its origin, for messages.
    """

    def __init__(self, mapping: Mapping[str, Any], where: str) -> None:
        self.mapping = mapping
        self.where = where

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.mapping.get(name) is not None:
                return name, self.mapping[name]
        return names[0], None

    def size(self, size: str, *names: str, default: Any = _REQUIRED, minimum: int = 1) -> int:
        """First of the named fields that is present and not null, as a whole number.

        Parameters
        ----------
        size : str
            Which size it is, a key of `fields.LIMITS`.
        names : str
            The field's name and its older spellings.
        default : int, optional
            Used when none is present; without it that is an error.
        """
        name, value = self._find(names)
        if value is None:
            if default is _REQUIRED:
                spellings = " or ".join(f"'{n}'" for n in names)
                raise SpecError(f"{self.where} lacks the field {spellings}; add it (a whole number, e.g. from the "
                                "model's published config.json).")  # fmt: skip
            return int(default)
        return check_size(value, size, f"{self.where}: {name}", minimum=minimum)

    def flag(self, *names: str, default: bool) -> bool:
        """First of the named fields that is present and not null, as true or false."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"{self.where}: {name} is {value!r}; legal: true, false.")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A field as text."""
        value = self.mapping.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise SpecError(f"{self.where}: {name} is {value!r}; it must be text.")
        return value
