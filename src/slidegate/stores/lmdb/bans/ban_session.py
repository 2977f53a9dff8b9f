"""The rules of bans at work on the rows of one transaction, and the list of bans that lasts from one to the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import time_ns

from ....core.bans.in_force import Ban, BanChange, Guarded
from ....core.bans.policy import BanPolicy
from ....core.bans.records import Ledger
from ....core.bans.rows import Row, from_rows
from ....core.bans.rules import BanRules, Steady
from ....core.bans.standing import Standing
from ....core.bans.standing_view import KeptStandings, kept_standings
from ....core.barred import Barred
from ....core.decision import Check
from ....core.store import Clock, Event
from .ban_codec import text_of
from .ban_rows import BanRows, records_of
from .standing_rows import LedgerRows, policy_of
from .written_list import WrittenList


class BanSession:
    """The rules of bans, and the records that they read and change in one transaction, from `open` to `leave`.

    Args:
        now_us: The store's clock.
        wall_us: Unix time, in microseconds; None for the system's.
        most: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(self, now_us: Clock, wall_us: Clock | None, most: int) -> None:
        self._clock = now_us
        self._wall = wall_us
        self._steady = Steady()
        self._most = most
        self._rules = BanRules(self, most)
        self._ban_rows: BanRows | None = None
        self._ledgers: LedgerRows | None = None
        self.forget()

    # -- the records, for the rules ----------------------------------------------------------------------------------

    def ledger(self, policy: str) -> Ledger | None:
        """Return the ledger of a policy; None if there is none."""
        return self._rows.get(policy)

    def open_ledger(self, policy: str) -> Ledger:
        """Return the ledger of a policy; make one if there is none."""
        return self._rows.open(policy)

    def ledgers(self) -> Collection[Ledger]:
        """Return the ledgers of all policies."""
        return self._rows.all()

    def standings(self) -> int:
        """Return how many standings there are under all policies."""
        return self._rows.count()

    def remember(self, change: BanChange) -> None:
        """Add a change to the history."""
        assert self._ban_rows is not None
        self._ban_rows.remember(change)

    @property
    def _rows(self) -> LedgerRows:
        assert self._ledgers is not None
        return self._ledgers

    # -- calls of the store ------------------------------------------------------------------------------------------

    def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. This changes nothing."""
        return self.list.find(guarded, *self.moments())

    def judge(self, checks: Sequence[Check], guarded: Sequence[Guarded], *, prolong: bool) -> Barred | None:
        """Return the refusal of a demand by a ban, if there is one."""
        bans = self.list.named((*guarded, *[key for _, key, _ in checks]))
        return self._rules.judge(bans, checks, *self.moments(), prolong=prolong) if bans else None

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that this makes."""
        return self._rules.strike(policy, key, weight, reason, prefix, *self.moments())

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._rules.ban(key, length_us, reason, by, *self.moments())

    def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        return self._rules.unban(key, by, *self.moments())

    def load(self, rows: Sequence[Row]) -> int:
        """Take over the rows of a `dump`; of two bans of a key the one that lasts longer stays."""
        self.make_sure(len(rows))
        moments = self.moments()
        return self._rules.load(from_rows(rows, *moments), *moments)

    def take_events(self) -> list[Event]:
        """Return the events that were not told yet, once."""
        events, self._rules.events = self._rules.events, []
        return events

    # -- the list of this process ------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Read everything again next time."""
        self.list = WrittenList()
        self.prefixes: set[str] = set()
        self._seen = -1
        self._row: bytes | None = None  # the next row to read; None once all were read

    def open(self, ban_rows: BanRows) -> None:
        """Begin with a transaction: look up the changes since last time; if they are many, `read_on` has to follow."""
        self.list.writes_to = None
        last = ban_rows.last()
        if self.list.is_whole and last > self._seen:
            if self._seen < 0 or ban_rows.is_far_from(self._seen):
                self._begin(ban_rows)
                if ban_rows.are_few():
                    self._read_all(ban_rows)
            else:
                self._follow(ban_rows)
        self.list.reads_from = None if self.list.is_whole else ban_rows
        self._ban_rows = ban_rows
        self._ledgers = LedgerRows(ban_rows.txn, ban_rows.dbs)

    def make_sure(self, more: int) -> None:
        """Read all bans at once where, by the rows, there is no room for some more: only the list tells who is over."""
        rows = self._ban_rows
        if not self.list.is_whole and rows is not None and rows.count() + more > self._most:
            writes_to = self.list.writes_to
            self._begin(rows)
            self._read_all(rows)
            self.list.writes_to = writes_to

    def _begin(self, ban_rows: BanRows) -> None:
        """Begin to read all bans."""
        self.forget()
        self._seen, self._row, self.list.is_whole = ban_rows.last(), b"", False

    def _read_all(self, ban_rows: BanRows) -> None:
        while self._row is not None:
            self._read_part(ban_rows)
        self.list.is_whole = True

    def read_on(self, ban_rows: BanRows) -> None:
        """Read some more of the bans, and after them the changes that were made meanwhile."""
        if self.list.is_whole:
            return
        if self._row is not None:
            self._read_part(ban_rows)
        elif not self._follow(ban_rows):
            self.forget()  # too much has changed: the next transaction begins again
        else:
            self.list.is_whole = self._seen >= ban_rows.last()

    def _read_part(self, ban_rows: BanRows) -> None:
        assert self._row is not None
        rows, self._row = ban_rows.part(ban_rows.dbs.bans, self._row)
        for record in records_of(rows):
            self._rules.record(record.ban)

    def _follow(self, ban_rows: BanRows) -> bool:
        """Look the next changes up; return False if some of them are deleted already."""
        keys = ban_rows.changed_since(self._seen)
        for key in keys or ():
            ban = ban_rows.get(key)
            self.list.follow(key, None)
            if ban is not None:
                self._rules.record(ban)
        self._seen += len(keys or ())
        return keys is not None

    def close(self, ban_rows: BanRows) -> None:
        """Write the standings that a job has changed."""
        self._rows.write()
        if self.list.is_whole:
            self._seen = ban_rows.last()

    def leave(self) -> None:
        """Drop everything of the transaction: while anything holds on to it, a child could not open the files again."""
        self.list.writes_to = self.list.reads_from = self._ban_rows = None
        self._ledgers = None

    def prolongs(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        """Return whether a demand prolongs any ban."""
        asked = (*guarded, *(key for _, key, _ in checks))
        return any(ban.prolong_us for ban in self.list.in_force(asked, *self.moments()))

    def take_over(self, found: Sequence[Ban]) -> int:
        """Record bans of another environment; return how many are still in force."""
        now_us, wall_us = self.moments()
        taken = 0
        for ban in found:
            made_us = now_us - max(wall_us - ban.wall_us, 0)
            ends_us = None if ban.ends_us is None else made_us + ban.ends_us - ban.made_us
            known = ban._replace(made_us=made_us, ends_us=ends_us)
            if not known.is_over(now_us, wall_us):
                self._rules.record(known)
                taken += 1
        return taken

    def active_of(self, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[Ban]:
        """Return the bans in force that stand in some rows."""
        now_us, wall_us = self.moments()
        return [record.ban for record in records_of(rows) if not record.ban.is_over(now_us, wall_us)]

    def standings_of(self, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[str, str, Standing]]:
        """Return (policy, key, standing) for some rows of `struck`, without standings that are over."""
        (now_us, _), found = self.moments(), []
        for row, packed in rows:
            policy, key = policy_of(row), text_of(packed)
            ledger = self._rows.get(policy)
            standing = ledger.standings.get(key) if ledger is not None else None
            if ledger is not None and standing is not None and not ledger.is_over(standing, now_us):
                found.append((policy, key, standing))
        return found

    def standings_under(self, keys: Sequence[str]) -> KeptStandings:
        """Return how each of some keys stands under each policy."""
        return self.moments()[0], kept_standings(self._rows.by_name(), keys)

    def moments(self) -> tuple[int, int]:
        """Return the store's time and Unix time."""
        return self._steady.at(self._clock()), time_ns() // 1000 if self._wall is None else self._wall()
