"""The doors to a `Model`: by name, from a config, from a parameter count, from sizes.

==================  ===============================================================================
`find`              a published model by name
`from_file`         a Hugging Face config.json, or the folder that holds it
`from_config`       the same, already parsed
`closest`           the shape that stands for a parameter count
`from_sizes`        layers, hidden, heads, ... one by one
`with_overrides`    any of these with some sizes replaced
`catalogue`         all published models known by name
`to_dict`           plain data for plan.json, and back with `from_dict`
==================  ===============================================================================
"""

from __future__ import annotations

from planner.model.catalogue import Entry, catalogue, find, find_entry
from planner.model.files import from_file
from planner.model.huggingface import MODEL_TYPES, from_config
from planner.model.scaling import closest, scaled
from planner.model.serial import from_dict, to_dict
from planner.model.shapes import OVERRIDES, SIZES, from_sizes, with_overrides

__all__ = [
    "MODEL_TYPES",
    "OVERRIDES",
    "SIZES",
    "Entry",
    "catalogue",
    "closest",
    "find",
    "find_entry",
    "from_config",
    "from_dict",
    "from_file",
    "from_sizes",
    "scaled",
    "to_dict",
    "with_overrides",
]
