"""Reads access logs, of every usual format, however large they are: each request with its client and its time.

A log is written by strangers. Each line becomes a record or is counted by the reason for which it is none, so that
records and skipped lines are the number of lines; nothing in a file raises.
"""

from .formats import parse_line
from .reader import AccessLogs
from .record import MAX_LINE_BYTES, AccessRecord, BrokenLine, LogCounts, Skip

__all__ = ["MAX_LINE_BYTES", "AccessLogs", "AccessRecord", "BrokenLine", "LogCounts", "Skip", "parse_line"]
