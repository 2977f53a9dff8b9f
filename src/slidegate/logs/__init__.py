"""Reads access logs, of every usual format, however large they are: each request with its client and its time.

Clients choose what a log contains. Each line becomes a record, or is counted by the reason why it was skipped, so
records and skipped lines add up to the number of lines; no content of a file raises.
"""

from .formats import parse_line
from .reader import AccessLogs
from .record import MAX_LINE_BYTES, AccessRecord, BrokenLine, LogCounts, Skip

__all__ = ["MAX_LINE_BYTES", "AccessLogs", "AccessRecord", "BrokenLine", "LogCounts", "Skip", "parse_line"]
