"""The `slidegate` command. Requires the extra `slidegate[cli]`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 for success, 1 for failure or a negative answer, 2 for wrong usage.

    Args:
        arguments: The arguments after ``slidegate``; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        # With the locale "C", non-ASCII output must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from .program import program

        program.main(arguments, prog_name="slidegate")
    except ImportError as error:  # the extra is missing or incomplete
        missing = getattr(error.__cause__, "name", error.name)  # the admin API names its own extra
        sys.stderr.write(f'slidegate: the command needs the package {missing}: pip install "slidegate[cli]"\n')
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
