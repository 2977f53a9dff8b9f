"""Where a memory store keeps the windows of one limit.

A table holds the windows of one identity (rule, window, resolution) and kind of ring, so that rules never mix, whatever
bytes their keys are made of, and everything in it expires after the same span.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from ...core.limits import AnyLimit, Limit
from ...core.limits import Identity as Window
from ...core.windows.packed import Row, load_row, newest_of, row_of, spend_counts, spend_times
from ...core.windows.periods import PeriodCount
from ...core.windows.places import Places
from ...core.windows.rings import Entry, Resting, convert, new_count
from ...core.windows.theory import Reading
from .cold import DICT_BITS, Rows
from .generations import Charged, Generations
from .hot import HotStorey

SHARED_CELLS: Final = 4_096

Identity: TypeAlias = tuple[str, Window, bool]
"""The rule, what its limits share their counts by, and whether times are kept."""


class MemoryStats(NamedTuple):
    """Counters of a `MemoryStore`.

    Attributes:
        keys: Windows held now, shared cells not included.
        evictions: Empty windows let go so far.
        shared_hits: Hits that were counted in a shared cell so far.
    """

    keys: int
    evictions: int
    shared_hits: int


class Shared(NamedTuple):
    """What the tables of a store share."""

    secret: bytes
    """What nobody outside knows, so that nobody can tell which keys meet in a cell."""
    hot: HotStorey
    generations: Generations


class Table:
    """The windows of keys, live ones and rows, and the shared cells by their number.

    Every key that has a window has a row. While the window is a live object, in `windows`, the row is out of date.

    Args:
        rule: The rule of the windows.
        limit: A limit that needs their kind of ring.
        due_us: When to look for empty windows first.
        shared: What the tables of a store share.
    """

    __slots__ = (
        "_floor",
        "_hot",
        "_scratch",
        "_spend_packed",
        "_walk",
        "cells",
        "copies",
        "dropped",
        "due_us",
        "generations",
        "idle",
        "kept",
        "limit",
        "rows",
        "rule",
        "secret",
        "since",
        "twin",
        "windows",
    )

    def __init__(self, rule: str, limit: AnyLimit, due_us: int, shared: Shared) -> None:
        self.rule = rule
        self.limit = limit
        self.due_us = due_us
        self.secret, self._hot, self.generations = shared
        self.rows = Rows()
        self.windows: dict[str, Entry] = {}
        self.cells: dict[int, Entry] = {}
        self.dropped = False  # whether the store has let go of this table
        self.idle = False  # whether the last visit found nothing, and nothing has come since
        self.twin: Table | None = None  # the other kind of ring, once an amount has crossed the resolution
        self._floor = self.generations.latest  # no charge of an earlier generation is in a window of this table
        self.since: dict[str | int, int] = {}  # by key or cell: the generation of its last upheaval, if it had one
        self.kept: dict[str, int] = {}  # keys that were reset: until when a charge of before could be handed back
        self.copies: dict[str, tuple[int, int]] = {}  # keys that moved out of a cell: its generation, and theirs
        self._walk: Iterator[str | int] | None = None  # the places that this round of visits has still to come to
        self._spend_packed = spend_times if limit.exact else spend_counts
        self._scratch = self.new_window()  # a ring to read rows into

    @property
    def identity(self) -> Identity:
        """The values that tell tables apart."""
        return self.rule, self.limit.same_window, self.limit.exact

    @property
    def has_cells(self) -> bool:
        """Whether any key is counted in a shared cell, here or in the twin."""
        return bool(self.cells or (self.twin is not None and self.twin.cells))

    @property
    def to_visit(self) -> bool:
        """Whether a round of visits is under way."""
        return self._walk is not None

    def is_empty(self) -> bool:
        """Tell whether there is no window and no cell."""
        return not (self.cells or self.rows)

    def cell_of(self, key: str) -> int:
        """Return the number of the shared cell of a key."""
        return cell_number(key, self.secret)

    def new_window(self) -> Resting:
        """Return an empty window."""
        return new_count(self.limit)

    def holds(self, window: Entry, now_us: int) -> bool:
        """Tell whether anything spent in `window` is still in it."""
        return window.spent > 0 and now_us < window.newest_us + self.limit.span_us

    def holds_at_rest(self, row: Row, now_us: int) -> bool:
        """Tell whether anything spent in a window at rest is still in it; `row` is not empty."""
        return now_us < newest_of(row) + self.limit.span_us

    # -- up and down ---------------------------------------------------------------------------------------------

    def wake(self, key: str) -> Entry | None:
        """Return the window of a key's own, which comes up if it is at rest; None if it has none."""
        window = self.windows.get(key)
        if window is None:
            window = self._read(key)
            if window is not None:
                self.windows[key] = window
                self._hot.add(self, key)
        return window

    def lay_down(self, key: str) -> None:
        """Pack the window of a key, if it is up."""
        window = self.windows.pop(key, None)
        if window is not None:
            self.rows.put(key, row_of(window))

    def spend_at_rest(self, key: str, now_us: int, amount: int, cost: int) -> Reading | None:
        """Do what `Window.spend` does in a window at rest, which then may come up; None if the key has no window."""
        rows = self.rows
        shard = rows.places[hash(key) >> DICT_BITS & rows.mask]
        row = shard.get(key)
        if row is None:
            return None
        hot = self._hot
        if row:
            if not hot.turned_down:
                return self._come_up(key, row, now_us, amount, cost)
            hot.turned_down -= 1
        spent = self._spend_packed(row, self.limit, now_us, amount, cost)
        if spent is not None:
            reading, shard[key] = spent
            return reading
        ring = self._scratch
        load_row(ring, row)
        reading = ring.spend(now_us, amount, cost)
        shard[key] = row_of(ring)  # after a refusal too: where the clock has stepped back, units have moved
        return reading

    def _come_up(self, key: str, row: Row, now_us: int, amount: int, cost: int) -> Reading:
        """Spend in a window at rest that comes up to stay."""
        ring = self.windows[key] = self.new_window()
        load_row(ring, row)
        reading = ring.spend(now_us, amount, cost)
        self._hot.exchange(self, key)
        return reading

    def _read(self, key: str) -> Resting | None:
        """Return a window as its row says it."""
        row = self.rows.get(key)
        if row is None:
            return None
        ring = self.new_window()
        if row:
            load_row(ring, row)
        return ring

    # -- windows that begin, move and change -------------------------------------------------------------------------

    def begin(self, key: str, own: Resting | None = None, number: int = 0) -> None:
        """Give a key a window of its own: an empty one, or a copy of a cell, of which it is remembered."""
        if own is not None and own.spent:
            self.copies[key] = self.since.get(number, self._floor), self.generations.begin()
            self.rows.put(key, row_of(own))
        else:
            self.rows.put(key, 0)
        self._began(key)

    def open_cell(self, number: int) -> Entry:
        """Return a cell, a new one if there is none."""
        cell = self.cells.get(number)
        if cell is None:
            cell = self.cells[number] = self.new_window()
            self._began(number)
        return cell

    def _began(self, place: str | int) -> None:
        """Note that there is a window where there was none."""
        self.idle = False
        if self.generations.stepped:
            self.since[place] = self.generations.latest

    def find(self, place: str | int, now_us: int) -> Entry | None:
        """Return the window of a key or a cell, or a converted copy of what the twin holds, if there is one.

        What is at rest stays there: the window that is returned is a copy.
        """
        window = self._look(place)
        if window is None and self.twin is not None and (moved := self.twin._look(place)) is not None:
            assert isinstance(self.limit, Limit), "only rings have a twin"
            assert not isinstance(moved, PeriodCount | Places), "only rings have a twin"
            return convert(moved, self.limit, now_us)
        return window

    def take_over(self, place: str | int, now_us: int) -> bool:
        """Convert and take over what the twin holds for a key or a cell that has nothing here; False if nothing."""
        twin = self.twin
        if twin is None or self._look(place) is not None:
            return False
        window = self.find(place, now_us)
        if window is None:
            return False
        if isinstance(place, int):
            del twin.cells[place]
            self.cells[place] = window
        else:
            twin.drop(place)
            self.rows.put(place, 0)
            self.windows[place] = window
            self._hot.add(self, place)
        self.since[place] = self.generations.begin()
        self.idle = False
        return True

    def first_window(self, cell: Entry | None, now_us: int) -> Resting:
        """Return the first window of a key's own, given its cell.

        The key's units in the cell cannot be told from those of others, so it takes a copy of all of them.
        """
        if cell is None or not self.holds(cell, now_us):
            return self.new_window()
        assert not isinstance(cell, Places), "places have no cells"
        return copy(cell)

    def charged(self, key: str, charge: Charged) -> list[Entry]:
        """Return the windows that hold a charge: where it was made, and the copy that was made of its cell since.

        A window that was reset, dropped or converted since has nothing of that charge.
        """
        found: list[Entry | None] = []
        if not charge.in_cell:
            if charge.generation >= self.since.get(key, self._floor):
                found.append(self.wake(key))
        else:
            first, last = self.copies.get(key, (0, 0))
            if first <= charge.generation < last:
                found.append(self.wake(key))
            number = self.cell_of(key)
            if charge.generation >= self.since.get(number, self._floor):
                found.append(self.cells.get(number))
        return [window for window in found if window is not None]

    def forget(self, key: str) -> bool:
        """Empty the window of a key's own; False if it has none."""
        window = self._look(key)
        if window is None:
            return False
        kept_us = max(window.newest_us + self.limit.span_us, self.kept.get(key, 0))
        self.drop(key)
        self.rows.put(key, 0)
        self.since[key] = self.generations.begin()
        self.kept[key] = kept_us
        return True

    def forget_all(self, generation: int) -> tuple[Rows, dict[int, Entry]]:
        """Give up all windows and cells, and return them; no charge of an earlier generation is handed back."""
        forgotten = self.rows, self.cells
        self.rows, self.cells = Rows(), {}
        self.windows.clear()  # not a new dict: the store holds this one
        for memo in (self.since, self.kept, self.copies):
            memo.clear()
        self._floor = generation
        return forgotten

    def drop(self, key: str) -> None:
        """Let go of the window of a key's own, and of all that is known of it."""
        self.rows.remove(key)
        self.windows.pop(key, None)
        self.copies.pop(key, None)
        self.since.pop(key, None)
        self.kept.pop(key, None)

    def step_back(self, now_us: int, generation: int) -> None:
        """Begin a generation for the windows in which a clock that has stepped back to `now_us` moves anything.

        It begins in empty windows too: the moments of charges that have aged out there may come again.
        """
        self.due_us = min(self.due_us, self.limit.leaves_us(now_us))
        places: list[tuple[str | int, Entry]] = [*self.windows.items(), *self.cells.items()]
        changed = [place for place, window in places if not window.spent or window.lies_ahead(now_us)]
        last_us = now_us if self.limit.exact else now_us + self.limit.slice_us
        for shard in self.rows.shards:
            at_rest = [(key, row) for key, row in shard.items() if key not in self.windows]
            changed += [key for key, row in at_rest if not row or last_us < newest_of(row)]
        for place in changed:
            self.since[place] = generation
            if isinstance(place, str):
                self.copies.pop(place, None)

    def _look(self, place: str | int) -> Entry | None:
        if isinstance(place, int):
            return self.cells.get(place)
        return self.windows.get(place) or self._read(place)

    # -- letting go --------------------------------------------------------------------------------------------------

    def visit(self, now_us: int, most: int) -> tuple[int, int]:
        """Look at the next windows and cells, at most `most`, and let go of the empty ones.

        Returns:
            How many were looked at, and how many keys were let go of.
        """
        if self._walk is None:
            self._walk = self._places()
        visits = gone = 0
        for place in islice(self._walk, most):
            visits += 1
            if isinstance(place, int):
                self._visit_cell(place, now_us)
            else:
                gone += self._visit_key(place, now_us)
        if visits < most:
            self._walk = None
        return visits, gone

    def _places(self) -> Iterator[str | int]:
        """Yield every key and cell that is there all the time; a list at a time, because they come and go meanwhile."""
        number = 0
        while number < len(shards := self.rows.shards):
            yield from list(shards[number])
            number += 1
        yield from list(self.cells)

    def _visit_key(self, key: str, now_us: int) -> bool:
        """Let go of the window of a key if it is empty; return whether it was."""
        window = self.windows.get(key)
        if window is None:
            row = self.rows.get(key)
            if row is None or (row and self.holds_at_rest(row, now_us)):
                return False
        elif self.holds(window, now_us):
            return False
        if now_us < self.kept.get(key, now_us):
            return False  # or nothing would tell charges of before the reset from those in a new window
        self.drop(key)
        return True

    def _visit_cell(self, number: int, now_us: int) -> None:
        """Let go of a cell if it is empty."""
        cell = self.cells.get(number)
        if cell is not None and not self.holds(cell, now_us):
            del self.cells[number]
            self.since.pop(number, None)


def cell_number(key: str, secret: bytes) -> int:
    """Return the number of the shared cell of a key."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), key=secret, digest_size=4).digest()
    return int.from_bytes(digest, "big") % SHARED_CELLS
