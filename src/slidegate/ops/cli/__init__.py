"""The `slidegate` command. Requires the extra `slidegate[cli]`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The arguments after ``slidegate``; by default those of the process.

    Returns:
        0 for success; 1 for a failure or a negative answer; 2 for wrong usage; 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        # With the locale "C", non-ASCII output must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from . import bans, check, explain, limits, simulate  # noqa: F401  each adds its commands to the program
        from .main import run_program
    except ModuleNotFoundError as error:  # the extra is missing or incomplete
        sys.stderr.write(f'slidegate: the command needs the package {error.name}: pip install "slidegate[cli]"\n')
        return 1
    return run_program(arguments)
