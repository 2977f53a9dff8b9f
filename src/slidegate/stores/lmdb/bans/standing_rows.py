"""The strikes, rungs and standings of ban policies in an LMDB environment.

These rows are the ledgers and standings of `core.bans.records`, which the rules of bans read and change::

    policies    policy                a few numbers of it, the number of its standings, the ring of its bans
    standings   policy NUL key        place in the queue, then the standing (`ban_codec`)
    struck      policy NUL place      key: the one that was struck longest ago comes first

A job may change a standing that it has read, and writes it back at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

from ....core.bans.records import Ledger
from ....core.bans.standing import Standing
from ....core.limits import Limit
from ..layout import Databases
from .ban_codec import pack_standing, row_of, text_of, unpack_standing

_PLACE: Final = Struct(">Q")
_POLICY: Final = Struct("=B?qqIqIQ")
_VERSION: Final = 1


def policy_of(row: bytes) -> str:
    """Return the name of the policy of a row of `struck`."""
    return text_of(row[: -_PLACE.size - 1])


class StandingRows:
    """The standings under one policy; those that a job has read are held until its end."""

    def __init__(self, txn: Any, dbs: Databases, policy: str, count: int) -> None:
        self._txn = txn
        self._dbs = dbs
        self._policy = policy
        self._queue = row_of(policy, "")
        self._held: dict[str, Standing] = {}
        self._read: dict[str, bytes] = {}  # the rows of the standings that are held, as they were read
        self._count = count

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[str, Standing]]:
        """Yield each key and its standing; the key that was struck longest ago comes first."""
        with self._txn.cursor(self._dbs.struck) as cursor:
            found = cursor.set_range(self._queue)
            while found and cursor.key().startswith(self._queue):
                key = text_of(cursor.value())
                standing = self.get(key)
                assert standing is not None
                yield key, standing
                found = cursor.next()

    def get(self, key: str) -> Standing | None:
        """Return the standing of a key."""
        known = self._held.get(key)
        if known is None:
            row = self._txn.get(row_of(self._policy, key), None, self._dbs.standings)
            if row is None:
                return None
            self._read[key] = row
            known = self._held[key] = unpack_standing(row, _PLACE.size)
        return known

    def put(self, key: str, standing: Standing) -> None:
        """Record the standing of a key that has none, at the end of the queue."""
        place = _PLACE.pack(self._next_place())
        self._txn.put(self._queue + place, key.encode("utf-8", "surrogatepass"), db=self._dbs.struck)
        self._read[key] = place
        self._txn.put(row_of(self._policy, key), place, db=self._dbs.standings)
        self._count += 1
        self._held[key] = standing

    def keep(self, key: str, standing: Standing) -> None:
        """Record a change of a standing; the key stays where it is in the queue."""
        self._held[key] = standing

    def take(self, key: str) -> Standing | None:
        """Take the standing of a key out, and return it; None if it has none."""
        standing = self.get(key)
        if standing is not None:
            self._txn.delete(self._queue + self._read.pop(key)[: _PLACE.size], b"", self._dbs.struck)
            self._txn.delete(row_of(self._policy, key), b"", self._dbs.standings)
            del self._held[key]
            self._count -= 1
        return standing

    def write(self) -> None:
        """Write back the standings that have changed."""
        for key, standing in self._held.items():
            row = self._read[key]
            packed = row[: _PLACE.size] + pack_standing(standing)
            if packed != row:
                self._txn.put(row_of(self._policy, key), packed, db=self._dbs.standings)
                self._read[key] = packed

    def _next_place(self) -> int:
        with self._txn.cursor(self._dbs.struck) as cursor:
            # The last place of this policy stands before the first row behind all of its places.
            behind = cursor.set_range(self._queue + b"\xff" * (_PLACE.size + 1))
            if (cursor.prev() if behind else cursor.last()) and cursor.key().startswith(self._queue):
                return int(_PLACE.unpack(cursor.key()[-_PLACE.size :])[0]) + 1
        return 0


class LmdbLedger(Ledger):
    """The standings under one policy, and the window of its bans."""

    standings: StandingRows

    def __init__(self, txn: Any, dbs: Databases, name: str, row: bytes | None) -> None:
        count = 0 if row is None else _POLICY.unpack_from(row)[-1]
        super().__init__(StandingRows(txn, dbs, name, count))
        self.row = row
        if row is not None:
            _, known, after_us, forgive_us, amount, window_us, resolution, _ = _POLICY.unpack_from(row)
            if known:
                most = Limit(amount, timedelta(microseconds=window_us), resolution=resolution)
                # The rules ask for no more than this of a policy that this process has not met yet.
                self.policy = SimpleNamespace(  # type: ignore[assignment]
                    after=SimpleNamespace(window_us=after_us), forgive_us=forgive_us, most=most
                )
                self.made = row[_POLICY.size :]

    def packed(self) -> bytes:
        """Return the row to write."""
        policy, count = self.policy, len(self.standings)
        if policy is None:
            return _POLICY.pack(_VERSION, False, 0, 0, 0, 0, 0, count)
        most = policy.most
        head = (policy.after.window_us, policy.forgive_us, most.amount, most.window_us, most.resolution, count)
        return _POLICY.pack(_VERSION, True, *head) + self.made


class LedgerRows:
    """The ledgers of all policies, read when they are asked for."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs
        self._held: dict[str, LmdbLedger] = {}

    def get(self, name: str) -> LmdbLedger | None:
        """Return the ledger of a policy, None if there is none."""
        found = self._held.get(name)
        if found is None:
            row = self._txn.get(row_of(name), None, self._dbs.policies)
            if row is None:
                return None
            found = self._held[name] = LmdbLedger(self._txn, self._dbs, name, row)
        return found

    def open(self, name: str) -> LmdbLedger:
        """Return the ledger of a policy, a new one if there is none."""
        found = self.get(name)
        if found is None:
            found = self._held[name] = LmdbLedger(self._txn, self._dbs, name, None)
        return found

    def all(self) -> list[Ledger]:
        """Return the ledgers of all policies."""
        return list(self.by_name().values())

    def by_name(self) -> dict[str, Ledger]:
        """Return the ledger of each policy, by its name."""
        with self._txn.cursor(self._dbs.policies) as cursor:
            names = {text_of(row) for row in cursor.iternext(values=False)}
        return {name: self.open(name) for name in sorted(names.union(self._held))}

    def count(self) -> int:
        """Return how many standings there are under all policies."""
        return int(self._txn.stat(self._dbs.standings)["entries"])

    def write(self) -> None:
        """Write back the ledgers and standings that have changed."""
        for name, ledger in self._held.items():
            ledger.standings.write()
            packed = ledger.packed()
            if packed != ledger.row:
                self._txn.put(row_of(name), packed, db=self._dbs.policies)
                ledger.row = packed
