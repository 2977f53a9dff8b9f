"""How the command ends: a code for scripts, and one sentence on stderr for people."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from typing import Final

import click

from ..core.errors import SlidegateError, StoreError
from ..core.logs import escaped, written

OK: Final = 0
FINDINGS: Final = 1
"""The command worked, and its answer is no: findings of `check`, or a thing that is not there."""
BAD_INPUT: Final = 2
UNREACHABLE: Final = 3
"""A store cannot be reached or opened."""
OWN_ERROR: Final = 70
"""A fault of slidegate; the number is that of ``sysexits.h``."""
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
"""The reader of the output has gone, as with ``| head``. A shell gives this number to a program that SIGPIPE ended."""
MAX_SENTENCE: Final = 1_000
TRACEBACK_VARIABLE: Final = "SLIDEGATE_TRACEBACK"


class NotFound(SlidegateError):
    """The thing that the command was asked about does not exist. The command ends with 1."""


def run_command(work: Callable[[], object]) -> int:
    """Do the work of a command, report on stderr how it failed, and return the exit code."""
    try:
        work()
        _flush()
        return OK
    except click.exceptions.Exit as end:
        code = end.exit_code
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else OK if end.code is None else BAD_INPUT
    except BaseException as error:
        code = _report(error)
    return _flushed(code)


def _report(error: BaseException) -> int:
    """Say what went wrong in one sentence, if there is something to say, and return the code."""
    if isinstance(error, (KeyboardInterrupt, click.Abort, asyncio.CancelledError)):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, click.ClickException):
        print_error(error.format_message() + _where_to_look(error))
        return BAD_INPUT
    if isinstance(error, SlidegateError):
        print_error(written(error, str))
        return FINDINGS if isinstance(error, NotFound) else UNREACHABLE if isinstance(error, StoreError) else BAD_INPUT
    if isinstance(error, OSError):
        file = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        print_error(file + (error.strerror or written(error, str)))
        return BAD_INPUT
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        for line in "".join(traceback.format_exception(error)).splitlines():
            _write(line)
    print_error(
        f"this is a fault of slidegate: {type(error).__name__}: {written(error, str)}; "
        f"please report it with the output of {TRACEBACK_VARIABLE}=1"
    )
    return OWN_ERROR


def _where_to_look(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f" ({context.command_path} --help shows how it is used)" if context is not None else ""


def print_error(message: str) -> None:
    """Write one line to stderr: whatever the message holds, it is one line of printable characters."""
    _write(f"slidegate: {' '.join(message.split())}")


def _write(line: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{escaped(line, MAX_SENTENCE)}\n")
        except OSError:
            _abandon("stderr")  # its reader has gone, so nobody is left to be told


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _flushed(code: int) -> int:
    """Return the code after the last output; a reader that has gone meanwhile is no failure of the work."""
    try:
        _flush()
    except OSError:
        pass
    else:
        return code
    # Python would flush once more at its end, and complain.
    _abandon("stdout")
    return CLOSED_PIPE if code in (OK, CLOSED_PIPE) else code


def _abandon(name: str) -> None:
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it lives as long as the process
