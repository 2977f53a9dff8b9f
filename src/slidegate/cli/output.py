"""The output of a command: text for people, JSON and CSV for programs.

Results go to stdout; notes, which are about the work and not its result, go to stderr. Text from outside, such as a
path or an agent in a log, never reaches the terminal as it is: control characters are escaped here, once for all
commands.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from ..core.logs import escaped, logger

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
T = TypeVar("T")

NARROWEST: Final = 20
WIDEST: Final = 200
FORMS: Final = ("text", "json", "csv")
MOST_OF_A_CELL: Final = 1_000
"""Characters of one value in a table."""
_LOOKED_AT: Final = 200
"""How many rows decide the widths of the columns: longer tables stream."""
_GAP: Final = "  "


class Output:
    """Where a command writes.

    Args:
        form: ``"text"``, ``"json"``, ``"csv"``, or a further form that the command knows.
        quiet: Whether notes are left out.

    Attributes:
        width: Columns of the terminal, 20 to 200; ``COLUMNS`` says otherwise, and 80 where there is no terminal.
        unicode: Whether the output can show more than ASCII; a drawing uses ASCII where it cannot.
    """

    def __init__(self, form: str = "text", quiet: bool = False) -> None:
        self.form = form
        self.quiet = quiet
        # Python gives a process without a stdout None.
        self._stdout = sys.stdout if sys.stdout is not None else io.StringIO()
        self._stderr = sys.stderr if sys.stderr is not None else io.StringIO()
        self.width = min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)
        encoding = getattr(self._stdout, "encoding", None) or "utf-8"
        self.unicode = encoding.lower().replace("-", "").startswith("utf")

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at stdout."""
        return self._stdout.isatty()

    def console(self, *, notes: bool = False) -> Console:
        """Return rich's console of this output, for colours, progress bars and live views.

        It has no colours where ``NO_COLOR`` is set or nobody looks. Text from outside goes through `clean` first, and
        into ``Text`` or ``escape``, because a console reads markup in plain strings.

        Args:
            notes: Whether it writes to stderr; it is silent where notes are left out.
        """
        from rich.console import Console

        stream = self._stderr if notes else self._stdout
        return Console(file=stream, width=self.width, quiet=notes and self.quiet, highlight=False)

    def say(self, *lines: str) -> None:
        """Write lines of text as they are, escaped; nothing in other forms than text."""
        if self.form == "text":
            self.write(lines or ("",))

    def write(self, lines: Iterable[str]) -> None:
        """Write lines in whatever form, escaped."""
        for line in lines:
            self._stdout.write(clean(line, most=len(line) * 10) + "\n")

    def note(self, message: str) -> None:
        """Write one line to stderr, unless the user wants quiet."""
        if not self.quiet:
            self._stderr.write(clean(message) + "\n")
            self._stderr.flush()

    def value(self, value: Mapping[str, Any]) -> None:
        """Write one result: ``name: value`` lines, one JSON object, or CSV with one row."""
        if self.form == "json":
            self._json(value)
        elif self.form == "csv":
            self._csv(list(value), [list(value.values())])
        else:
            for name, held in value.items():
                self.say(f"{name}: {_cell(held)}")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Write a table as its rows come, and return how many there were.

        As text it has aligned columns; where it is too wide for the terminal, each row is a block of ``name: value``
        lines. As JSON, each row is an object on its own line. As CSV, the first line holds the names.

        Args:
            columns: The names of the columns.
            rows: Values in that order: text, numbers, True, False or None; in JSON also lists and mappings.
        """
        if self.form == "json":
            return sum(self._json(dict(zip(columns, row, strict=True))) for row in rows)
        if self.form == "csv":
            return self._csv(columns, rows)
        return self._table(columns, rows)

    def _json(self, value: Mapping[str, Any]) -> int:
        self._stdout.write(json.dumps(value, allow_nan=False) + "\n")
        return 1

    def _csv(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        writer = csv.writer(self._stdout, lineterminator="\n")
        writer.writerow(columns)
        return sum(bool(writer.writerow([_cell(value) for value in row])) for row in rows)

    def _table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        coming: Iterator[list[str]] = ([_cell(value) for value in row] for row in rows)
        first = list(islice(coming, _LOOKED_AT))
        if not first:
            return 0
        widths = [max(len(row[place]) for row in (list(columns), *first)) for place in range(len(columns))]
        fits = sum(widths) + len(_GAP) * (len(widths) - 1) <= self.width
        count = 0
        if fits:
            self._stdout.write(_aligned(columns, widths))
        for count, row in enumerate(chain(first, coming), 1):
            if fits:
                self._stdout.write(_aligned(row, widths))
            else:
                self._stdout.write("\n" * (count > 1) + "".join(map("{}: {}\n".format, columns, row)))
        return count


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(map(str.ljust, cells, widths)).rstrip() + "\n"


def clean(text: str, most: int = MOST_OF_A_CELL) -> str:
    """Return a text with every character that is not printable escaped, cut to so many characters."""
    return escaped(text, most)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(value if isinstance(value, str) else str(value))


def time_of(moment: datetime | int) -> str:
    """Return a moment, or microseconds of Unix time, as ``2026-01-31T12:00:00Z``."""
    if isinstance(moment, int):
        moment = datetime.fromtimestamp(moment / 1_000_000, UTC)
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"


def with_output(
    *more: str, forms: Sequence[str] = FORMS
) -> Callable[[Callable[Concatenate[Output, P], T]], Callable[P, T]]:
    """Give a click command the options ``--format`` and ``--quiet``, and an `Output` as its first argument.

    Args:
        more: Further forms that this command knows, such as ``"github"``.
        forms: The forms that every command knows; the first is taken where none is named.
    """

    def decorate(function: Callable[Concatenate[Output, P], T]) -> Callable[P, T]:
        @wraps(function)
        def command(*args: P.args, **options: P.kwargs) -> T:
            return function(Output(str(options.pop("format")), bool(options.pop("quiet"))), *args, **options)

        choice = click.Choice([*forms, *more])
        command = click.option("--quiet", "-q", is_flag=True, help="Leave out notes and progress.")(command)
        return click.option("--format", type=choice, default=forms[0], show_default=True, help="Form of output.")(
            command
        )

    return decorate


@contextmanager
def silent_log() -> Iterator[None]:
    """Keep the package from logging, while a command itself says what it has found."""
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def put_on_path(directory: str) -> None:
    """Let modules be imported from a directory, as a server does."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
