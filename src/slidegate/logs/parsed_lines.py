"""Records out of blocks of lines, and the counts that go with them."""

from __future__ import annotations

import marshal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..core.logs import escaped
from .access_record import HARMLESS, AccessRecord, Skip
from .formats.w3c_logs import FIELDS, w3c_names
from .line_parser import LineParser
from .raw_lines import Block

MOST_EXAMPLES: Final = 3
MOST_CHARACTERS: Final = 160
_HEADER: Final = FIELDS.encode()


class BrokenLine(NamedTuple):
    """A line that could not be read, for people to look at."""

    file: str
    """The name of the file; ``-`` for standard input."""
    number: int
    """The number of the line, from 1 on."""
    reason: Skip
    text: str
    """Its beginning, at most 160 printable characters."""


class Parsed(NamedTuple):
    """The records of a block, and the lines that are none."""

    records: list[AccessRecord]
    lines: int
    skipped: dict[Skip, int]
    broken: list[tuple[int, Skip, bytes]]
    """At most three of the lines: the place in the block from 0 on, the reason, and the beginning of the line."""


@dataclass
class LogCounts:
    """How many lines there were so far, and the fate of each; `lines` is the sum of `records` and `skipped`.

    Attributes:
        lines: Lines read. Data that is damaged counts as one.
        records: Lines that hold a request.
        skipped: Lines that do not, by reason.
        late: Records that were handed on after one of a later time.
        examples: At most three broken lines.
    """

    lines: int = 0
    records: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)
    late: int = 0
    examples: list[BrokenLine] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """Lines that hold no request and should: all that were skipped but empty lines and header lines."""
        return sum(count for reason, count in self.skipped.items() if reason not in HARMLESS)

    def add(self, parsed: Parsed, file: str, before: int) -> None:
        """Count a block.

        Args:
            parsed: The block.
            file: The name of its file.
            before: How many lines of the file there were in front of it.
        """
        self.lines += parsed.lines
        self.records += len(parsed.records)
        self.skipped.update(parsed.skipped)
        for place, reason, line in parsed.broken[: MOST_EXAMPLES - len(self.examples)]:
            text = escaped(line.decode(errors="replace").rstrip("\r\n"), MOST_CHARACTERS)
            self.examples.append(BrokenLine(escaped(file, MOST_CHARACTERS), before + place + 1, reason, text))


def parse_block(parser: LineParser, block: Block) -> Parsed:
    """Read the lines of a block."""
    records: list[AccessRecord] = []
    skipped: Counter[Skip] = Counter()
    broken: list[tuple[int, Skip, bytes]] = []
    names, parse = block.names, parser.parse
    lines = block.lines.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for place, line in enumerate(lines):
        found = parse(line, names)
        if isinstance(found, AccessRecord):
            records.append(found)
            continue
        skipped[found] += 1
        if found is Skip.HEADER and line.startswith(_HEADER):
            names = w3c_names(line.decode(errors="replace"))
        elif found not in HARMLESS and len(broken) < MOST_EXAMPLES:
            broken.append((place, found, line[: 4 * MOST_CHARACTERS]))
    if block.damage is not None:
        skipped[block.damage] += 1
    return Parsed(records, len(lines) + (block.damage is not None), skipped, broken)


def packed(parsed: Parsed) -> bytes:
    """Return a parsed block as bytes that another process of this program unpacks quickly."""
    return marshal.dumps((
        [tuple(record) for record in parsed.records],
        parsed.lines,
        {str(reason): count for reason, count in parsed.skipped.items()},
        [(place, str(reason), line) for place, reason, line in parsed.broken],
    ))  # fmt: skip


def unpacked(data: bytes) -> Parsed:
    """Undo `packed`."""
    records, lines, skipped, broken = marshal.loads(data)
    make: Any = AccessRecord._make
    return Parsed(
        list(map(make, records)),
        lines,
        {Skip(reason): count for reason, count in skipped.items()},
        [(place, Skip(reason), line) for place, reason, line in broken],
    )
