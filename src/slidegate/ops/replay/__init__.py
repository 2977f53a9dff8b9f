"""Replays access logs through the real middleware in virtual time, and measures how busy clients were.

`lines` and `logs` read files, `replay` sends records to copies of middlewares, and `report` counts the results.
"""

from __future__ import annotations

from .lines import AccessRecord, line_parser
from .logs import AccessLogs
from .replay import Replay, ReplayedRequest, nothing
from .report import Simulation, measure

__all__ = [
    "AccessLogs",
    "AccessRecord",
    "Replay",
    "ReplayedRequest",
    "Simulation",
    "line_parser",
    "measure",
    "nothing",
]
