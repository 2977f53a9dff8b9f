"""Replays access logs through the real middleware in virtual time, and measures how busy clients were.

`lines` and `logs` read files, `replay` sends records to copies of middlewares, and `report` counts the results.
"""

from __future__ import annotations

from .lines import AccessRecord, line_parser
from .logs import AccessLogs
from .replay import Played, Replay, nothing
from .report import Measured, Simulated

__all__ = ["AccessLogs", "AccessRecord", "Measured", "Played", "Replay", "Simulated", "line_parser", "nothing"]
