"""The group of all subcommands, each a module in this package, and how errors of the library become exit codes."""

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
    """Imports a subcommand only when it is called, so that none loads the dependencies of others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand, and convert errors of the library to click's.

        Raises:
            click.UsageError: An argument is invalid; exit code 2.
            click.ClickException: Any other error; exit code 1.
        """
        try:
            with silent_log():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click exits silently if the reader of the output has closed it, as with `| head`
        except ConfigurationError as error:
            raise click.UsageError(one_line(error)) from error
        except (SlidegateError, OSError) as error:
            _drop_unwritten()
            raise click.ClickException(one_line(error)) from error


def _drop_unwritten() -> None:
    """Discard output that a full disk rejects; otherwise the interpreter flushes again at exit, and fails with 120."""
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
    """Tools for sliding-window rate limits: test limits before they are enabled, and operate them afterwards.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """
