"""The group of all sub-commands, each of which is a module beside this one, and how errors of the library end it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from ..core.errors import ConfigurationError, SlidegateError
from .output import one_line, silent_log

COMMANDS: Final = ("check", "suggest", "simulate", "explain", "bans", "limits", "key", "top")


class _Program(click.Group):
    """Imports a sub-command when it is called, so that none waits for what another needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command; what the library refuses is one sentence, as click's own errors are.

        Raises:
            click.UsageError: A value of the command line cannot be used; the command ends with 2.
            click.ClickException: Anything else went wrong; the command ends with 1.
        """
        try:
            with silent_log():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly where the reader of the output has gone, as with `| head`
        except ConfigurationError as error:
            raise click.UsageError(one_line(error)) from error
        except (SlidegateError, OSError) as error:
            _drop_unwritten()
            raise click.ClickException(one_line(error)) from error


def _drop_unwritten() -> None:
    """Drop output that a full disk does not take: else the interpreter tries again at its end, and exits with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    package = import_module("slidegate")
    return f"{package.__version__} ({'compiled' if package.__compiled__ else 'interpreted'})"


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), message="%(prog)s %(version)s")
def program() -> None:
    """Tools around sliding-window rate limits: try a limit before it is in force, and operate it when it is.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """
