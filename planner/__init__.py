"""Which parallel strategy, will it fit, how fast: before a MindSpore training job on Ascend is launched."""

from __future__ import annotations

__version__ = "0.1.0"
