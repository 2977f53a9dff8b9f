"""The table of sub-commands, each of which is imported when it is asked for, and the way into them.

``slidegate --help`` names them all and imports none, so that it answers at once whatever they need.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem, shell_complete

from ..core.errors import ConfigurationError, closest
from .exits import FINDINGS, run_command

NAME: Final = "slidegate"
COMPLETION_VARIABLE: Final = "_SLIDEGATE_COMPLETE"
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "bans": (".bans:bans", "List, make, take back, export and import bans."),
    "explain": (".explain:explain", "Show what limits let through, and when a client may come back."),
    "check": (".check:check", "Look for probable mistakes in a configuration or an application."),
    "simulate": (".simulate:simulate", "Replay access logs through limits, and say whom they touch."),
    "suggest": (".suggest:suggest", "Work out limits and bans from access logs."),
    "key": (".key:key", "Look at one key, or forget its windows."),
    "top": (".top:top", "Watch requests, refusals, bans and shadow rules."),
}
"""The name of a sub-command -> its object, as ``.module:object`` below this package, and its subject."""


class Program(click.Group):
    """The group of all sub-commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all sub-commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a sub-command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module, __package__), name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(f"{NAME}."):
                raise
            raise ConfigurationError(
                f'{cmd_name} needs the package {error.name}: pip install "slidegate[cli]"'
            ) from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command that the first word names.

        Raises:
            click.UsageError: There is none; the message names the closest.
        """
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{closest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of sub-commands from the table alone."""
        if COMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl([(name, subject) for name, (_, subject) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a sub-command from the table alone."""
        names = [CompletionItem(name, help=COMMANDS[name][1]) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"{NAME} {sys.modules[__name__.partition('.')[0]].__version__}")
        ctx.exit()


@click.group(cls=Program, name=NAME, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def program() -> None:
    """Tools around sliding-window rate limits: know what a limit does before it is on, and look after it when it is.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """


def run(arguments: Sequence[str]) -> int:
    """Run the command with these words and return its exit code; no exception comes out."""
    for stream in (sys.stdout, sys.stderr):
        # Where the locale is "C", a name outside ASCII must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return run_command(lambda: _invoke(list(arguments)))


def _invoke(arguments: list[str]) -> None:
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        # `Command.main` would do this too, and ends the process in its own ways.
        sys.exit(FINDINGS if shell_complete(program, {}, NAME, COMPLETION_VARIABLE, instruction) else 0)
    with program.make_context(NAME, arguments or ["--help"]) as context:
        program.invoke(context)
