"""The `slidegate` command. It needs the extra `slidegate[cli]`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed or the answer is no, 2 for wrong usage.

    Args:
        arguments: The words behind ``slidegate``; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        # Where the locale is "C", a name outside ASCII must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from .program import program

        program.main(arguments, prog_name="slidegate")
    except ModuleNotFoundError as error:  # the extra is not installed, or half of it
        sys.stderr.write(f'slidegate: the command needs the package {error.name}: pip install "slidegate[cli]"\n')
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
