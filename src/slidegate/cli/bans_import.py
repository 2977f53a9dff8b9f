"""Reading bans from a file into a store, a thousand at a time."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import click

from ..core.addresses import parse_network
from ..core.bans.ban import clean_reason
from ..core.bans.policy import hand_ban_key
from ..core.durations import format_duration
from ..core.errors import ConfigurationError, quoted
from ..core.limits import MAX_WINDOW_US, parse_duration_us
from ..limiter.limiter import PERMANENT
from ..web.file_watcher import read_whole
from ..web.network_files import MAX_BYTES, read_entries
from .store import StoreSession

OWN: Final = "slidegate"
BATCH: Final = 1_000
FORMS_IN: Final = ("auto", OWN, "plain")
"""The format of slidegate's own, or a list of networks as `NetworkFile` takes it; by default the first line tells."""
MAX_LINE: Final = 65_536
"""Characters of a line of slidegate's own format: strikes of 65 sources, and room to spare."""
_OWN_HEAD: Final = b'{"slidegate"'
_DIGEST: Final = re.compile(r'\{"ban": "[^"]*#[0-9a-f]{32}"')

_MAX: Final = format_duration(MAX_WINDOW_US)

if TYPE_CHECKING:
    Words: TypeAlias = click.ParamType[str]
else:
    Words = click.ParamType  # older releases of click know no type there

_FORMS: Final = f'a number and a unit, for example 90s, 30m, 12h or 7d, up to {_MAX}, or "permanent"'
_SPAN: Final = re.compile("[0-9]{1,18}[A-Za-z]+", re.ASCII)


class BanSpan(Words):
    """A span of time up to 400 days, or ``permanent``: text that `Limiter.ban` takes."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text.

        Raises:
            click.BadParameter: It is none of the forms, or too long.
        """
        text = str(value)
        if text == PERMANENT:
            return text
        try:
            # A blank is more often a lost quote than a wish.
            span_us = parse_duration_us(text) if _SPAN.fullmatch(text) else 0
        except ConfigurationError:
            span_us = 0
        if not 0 < span_us <= MAX_WINDOW_US:
            self.fail(f"expected {_FORMS}, not {quoted(text)}", param, ctx)
        return text


SPAN: Final = BanSpan()


def span_us(text: str) -> int | None:
    """Return the microseconds of a text that `BanSpan` let through; None for one that does not end."""
    return None if text == PERMANENT else parse_duration_us(text)


class Import:
    """One import.

    Args:
        file: The file; ``"-"`` is stdin.
        form: One of `FORMS_IN`.
        span: How long bans last that have no end, as `BanSpan` has it; None if none may be without.
        reason: The reason, where the file gives none.
        by: The person who bans, where the file names nobody.

    Attributes:
        done: How many bans are written for certain.
        over: How many were left out because they have ended.
        digests: How many are written that may mean nobody: digests of an export of version 1. Without a secret, such a
            digest meant something to its own store alone.
    """

    def __init__(self, file: str, form: str, span: str | None, reason: str, by: str) -> None:
        self.done = self.over = self.digests = 0
        self._file = file
        self._form = form
        self._span = span
        self._reason, self._by = clean_reason(reason), clean_reason(by)
        self._now_us = time.time_ns() // 1_000
        self._is_own = form == OWN

    def batches(self, session: StoreSession) -> Iterator[int]:
        """Write the bans, and yield after each batch how many are written.

        Raises:
            ConfigurationError: The file or a line cannot be read; the batches before it are written.
            StoreError: The store does not answer.
        """
        with self._opened() as lines:
            own = self._is_own
            head, rows = self._own(iter(partial(lines.readline, MAX_LINE + 1), "")) if own else self._foreign(lines)
            was_v1 = json.loads(head)["version"] == 1
            number = 2
            while batch := list(islice(rows, BATCH)):
                certain: list[str] = []
                doubtful: list[str] = []
                for row in batch:
                    (doubtful if was_v1 and _DIGEST.match(row) else certain).append(row)
                try:
                    count = session.wait(session.limiter.import_bans([head, *certain]))
                    digests = session.wait(session.limiter.import_bans([head, *doubtful])) if doubtful else 0
                except ConfigurationError as error:
                    where = f"lines {number} to {number + len(batch) - 1}" if own else "a batch of entries"
                    raise ConfigurationError(f"{self._name}, {where}: {error}") from None
                number += len(batch)
                self.done += count
                self.digests += digests
                self.over += max(sum('"ban"' in row[:8] for row in batch) - count - digests, 0)
                yield self.done + self.digests

    @property
    def _name(self) -> str:
        return "stdin" if self._file == "-" else self._file

    def _opened(self) -> io.TextIOWrapper:
        if self._file == "-":
            if sys.stdin is None:
                raise ConfigurationError("stdin is closed; write the name of a file")
            raw: BinaryIO = sys.stdin.buffer
            if not self._is_own:
                content = _bounded(raw)
                self._is_own = self._form == FORMS_IN[0] and content.startswith(_OWN_HEAD)
                raw = io.BytesIO(content)
        else:
            raw = self._file_to_read()
        return io.TextIOWrapper(raw, "utf-8-sig", "replace")

    def _file_to_read(self) -> BinaryIO:
        """Open a file: one of slidegate's own is read line by line, however large it is, any other one whole."""
        if self._form in (FORMS_IN[0], OWN):
            file = open(self._file, "rb")  # noqa: SIM115 - closed by whoever reads it
            if not self._is_own and file.read(len(_OWN_HEAD)) == _OWN_HEAD:
                self._is_own = True
                file.seek(0)
            if self._is_own:
                return file
            file.close()
        try:
            content = read_whole(self._file, MAX_BYTES)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._file}: {error}") from None
        return io.BytesIO(content)

    def _own(self, lines: Iterator[str]) -> tuple[str, Iterator[str]]:
        """Return the head and the rows of slidegate's own format."""
        head = next(lines, "")
        try:
            found = json.loads(head)
            known = found["slidegate"] == "bans" and "version" in found
        except (ValueError, TypeError, KeyError, RecursionError):
            known = False
        if not known:
            raise ConfigurationError(f"{self._name}, line 1: expected the head of an export, not {quoted(head)}")

        def rows() -> Iterator[str]:
            for number, line in enumerate(lines, start=2):
                if len(line) > MAX_LINE:
                    raise ConfigurationError(f"{self._name}, line {number}: expected at most {MAX_LINE} characters")
                yield line

        return head, rows()

    def _foreign(self, lines: Iterable[str]) -> tuple[str, Iterator[str]]:
        """Return head and rows, as slidegate's own format has them, for the entries of another one."""
        head = json.dumps({"slidegate": "bans", "version": 2, "written_us": self._now_us})

        def rows() -> Iterator[str]:
            try:
                for line, text in read_entries(lines):
                    yield json.dumps(self._row(line, text))
            except ConfigurationError as error:
                raise ConfigurationError(f"{self._name}, {error}") from None

        return head, rows()

    def _row(self, line: int, text: str) -> dict[str, Any]:
        try:
            parse_network(text)
            key = hand_ban_key(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"line {line}: a ban is of one address or network: {error}") from None
        if self._span is None:
            raise ConfigurationError(f"line {line}: {text!r} has no end; say with --for how long such bans last")
        length_us = span_us(self._span)
        ends_us = None if length_us is None else self._now_us + length_us
        moments = {"made_us": self._now_us, "ends_us": ends_us, "since_us": self._now_us}
        return {"ban": key, "reason": self._reason, "by": self._by, "rung": 0, **moments, "prolong_us": 0}


def _bounded(stream: BinaryIO) -> bytes:
    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"stdin: expected at most {MAX_BYTES >> 20} MiB; --as slidegate reads any length")
    return content
