"""The `slidegate` command. Requires the extra `slidegate[cli]`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Final

_SHOWN: Final = "backslashreplace"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The arguments after ``slidegate``; by default those of the process.

    Returns:
        0 for success; 1 for a failure or a negative answer; 2 for wrong usage; 3 if `slidegate explain` has no answer;
        130 after Ctrl-C.
    """
    # Text in another encoding must not raise; of input it is no valid value, as in an argument.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, _SHOWN), (sys.stderr, _SHOWN)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        from . import changes, check, explain, simulate  # noqa: F401  each adds its commands to the program
        from .main import run_program
    except ModuleNotFoundError as error:  # the extra is missing or incomplete
        sys.stderr.write(f'slidegate: the command needs the package {error.name}: pip install "slidegate[cli]"\n')
        return 1
    return run_program(arguments)
