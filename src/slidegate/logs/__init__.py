"""Streams access logs of all common formats as records of requests, in constant memory.

Log content is untrusted and never raises. Each line becomes a record or is counted by the reason it was skipped, so
records and skipped lines add up to the number of lines.
"""

from .formats import parse_line
from .reader import AccessLogs
from .record import MAX_LINE_BYTES, AccessRecord, BrokenLine, LogCounts, Skip

__all__ = ["MAX_LINE_BYTES", "AccessLogs", "AccessRecord", "BrokenLine", "LogCounts", "Skip", "parse_line"]
