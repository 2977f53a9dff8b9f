"""Reads access logs, of every usual format, however large they are: each request with its client and its time.

A log is written by strangers. Each line becomes a record or is counted by the reason for which it is none, so that
records and skipped lines are the number of lines; nothing in a file raises.
"""

from .access_logs import AccessLog, AccessLogs
from .access_record import MAX_LINE_BYTES, AccessRecord, Skip
from .followed_log import FollowedLog
from .line_parser import parse_line
from .parsed_lines import BrokenLine, LogCounts

__all__ = [
    "MAX_LINE_BYTES",
    "AccessLog",
    "AccessLogs",
    "AccessRecord",
    "BrokenLine",
    "FollowedLog",
    "LogCounts",
    "Skip",
    "parse_line",
]
