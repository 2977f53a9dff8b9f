"""The names of `slidegate.ops.access_logs` that were here in version 0.1."""

from .access_logs import MAX_LINE_BYTES, AccessLog, AccessRecord, Skip, parse_line

__all__ = ["MAX_LINE_BYTES", "AccessLog", "AccessRecord", "Skip", "parse_line"]
