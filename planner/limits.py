"""Largest and smallest values that make sense; beyond them a typing error is likelier than a machine."""

from typing import Final

MOST_CARDS: Final = 1_000_000
MOST_TOKENS: Final = 10**18
MOST_SEQ: Final = 2**27
MOST_BATCH: Final = 2**24
MOST_ROWS: Final = 1_000_000
LEAST_PARAMETERS: Final = 10**6
MOST_PARAMETERS: Final = 10**14
