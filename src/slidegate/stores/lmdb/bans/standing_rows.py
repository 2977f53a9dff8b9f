"""What an LMDB environment remembers under ban policies.

It looks like the dicts of `memory_bans`, so that both stores keep the rules of that module by the same code::

    policies    policy                a few numbers of it, how many standings it has, the window of the bans it made
    standings   policy NUL key        place in the queue, then the standing (`records`)
    struck      policy NUL place      key: who was struck longest ago comes first

What was read in a job may be changed by it, and is written back at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final

from ....core.bans.standing import Standing
from ....core.limits import Limit
from ....core.windows.codec import pack_window, unpack_window
from ...memory.bans import Ledger
from ..files.layout import Databases
from .ban_codec import pack_standing, row_of, text_of, unpack_standing

_PLACE: Final = Struct(">Q")
_POLICY: Final = Struct("=B?qqIqIQ")
_VERSION: Final = 1


def policy_of(row: bytes) -> str:
    """Return the name of the policy of a row of `struck`."""
    return text_of(row[: -_PLACE.size - 1])


class Standings(dict[str, Standing]):
    """The standings under one policy; as a dict it holds those that the job has read."""

    def __init__(self, txn: Any, dbs: Databases, policy: str, count: int) -> None:
        super().__init__()
        self._txn = txn
        self._dbs = dbs
        self._policy = policy
        self._queue = row_of(policy, "")
        self._read: dict[str, bytes] = {}  # the rows as they were read
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._load(key) is not None

    def __iter__(self) -> Iterator[str]:
        with self._txn.cursor(self._dbs.struck) as cursor:
            found = cursor.set_range(self._queue)
            while found and cursor.key().startswith(self._queue):
                yield text_of(cursor.value())
                found = cursor.next()

    def items(self) -> Any:
        """Yield (key, standing), who was struck longest ago first."""
        return ((key, self[key]) for key in self)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a standing."""
        found = self._load(key)
        return default if found is None else found

    def __getitem__(self, key: str) -> Standing:
        found = self._load(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, standing: Standing) -> None:
        if self._load(key) is not None:
            self._delete(key)
        place = _PLACE.pack(self._next_place())
        self._txn.put(self._queue + place, key.encode("utf-8", "surrogatepass"), db=self._dbs.struck)
        self._read[key] = place
        self._txn.put(row_of(self._policy, key), place, db=self._dbs.standings)
        self.count += 1
        super().__setitem__(key, standing)

    def __delitem__(self, key: str) -> None:
        self[key]
        self._delete(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Take a standing out."""
        found = self._load(key)
        if found is None:
            return default[0]
        self._delete(key)
        return found

    def write(self) -> None:
        """Write back what has changed."""
        for key, standing in super().items():
            row = self._read[key]
            packed = row[: _PLACE.size] + pack_standing(standing)
            if packed != row:
                self._txn.put(row_of(self._policy, key), packed, db=self._dbs.standings)
                self._read[key] = packed

    def _load(self, key: str) -> Standing | None:
        known = super().get(key)
        if known is None:
            row = self._txn.get(row_of(self._policy, key), None, self._dbs.standings)
            if row is None:
                return None
            self._read[key] = row
            known = unpack_standing(row, _PLACE.size)
            super().__setitem__(key, known)
        return known

    def _delete(self, key: str) -> None:
        self._txn.delete(self._queue + self._read.pop(key)[: _PLACE.size], b"", self._dbs.struck)
        self._txn.delete(row_of(self._policy, key), b"", self._dbs.standings)
        super().pop(key)
        self.count -= 1

    def _next_place(self) -> int:
        with self._txn.cursor(self._dbs.struck) as cursor:
            # The last one of this policy stands before the first one of whatever comes behind all of its places.
            behind = cursor.set_range(self._queue + b"\xff" * (_PLACE.size + 1))
            if (cursor.prev() if behind else cursor.last()) and cursor.key().startswith(self._queue):
                return int(_PLACE.unpack(cursor.key()[-_PLACE.size :])[0]) + 1
        return 0


class LmdbLedger(Ledger):
    """What is remembered under one policy."""

    def __init__(self, txn: Any, dbs: Databases, name: str, row: bytes | None) -> None:
        super().__init__()
        self._row = row
        count = 0
        if row is not None:
            _, known, after_us, forgive_us, amount, window_us, resolution, count = _POLICY.unpack_from(row)
            if known:
                most = Limit(amount, timedelta(microseconds=window_us), resolution=resolution)
                # All that is asked of a policy of which nothing else is known in this process.
                self.policy = SimpleNamespace(  # type: ignore[assignment]
                    after=SimpleNamespace(window_us=after_us), forgive_us=forgive_us, most=most
                )
                self.made = unpack_window(row, most, 0, _POLICY.size)  # type: ignore[assignment]
        self.standings = Standings(txn, dbs, name, count)

    def packed(self) -> bytes:
        """Return the row to write."""
        policy, count = self.policy, len(self.standings)
        if policy is None or self.made is None:
            return _POLICY.pack(_VERSION, False, 0, 0, 0, 0, 0, count)
        most = policy.most
        head = (policy.after.window_us, policy.forgive_us, most.amount, most.window_us, most.resolution, count)
        return _POLICY.pack(_VERSION, True, *head) + pack_window(self.made)


class Ledgers(dict[str, Ledger]):
    """The ledgers of all policies, read when they are asked for."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        super().__init__()
        self._txn = txn
        self._dbs = dbs
        self._rows: dict[str, bytes | None] = {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> Ledger:
        found: Ledger | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return a ledger."""
        if not super().__contains__(name):
            row = self._txn.get(row_of(name), None, self._dbs.policies)
            if row is None:
                return default
            self._rows[name] = row
            super().__setitem__(name, LmdbLedger(self._txn, self._dbs, name, row))
        return super().__getitem__(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a ledger, a new one if there is none."""
        found = self.get(name)
        if found is None:
            self._rows[name] = None
            found = LmdbLedger(self._txn, self._dbs, name, None)
            super().__setitem__(name, found)
        return found

    def values(self) -> Any:
        """Return all ledgers."""
        return [ledger for _, ledger in self.items()]

    def items(self) -> Any:
        """Return all ledgers by name."""
        with self._txn.cursor(self._dbs.policies) as cursor:
            names = {text_of(row) for row in cursor.iternext(values=False)}
        return [(name, self[name]) for name in sorted(names.union(super().keys()))]

    def write(self) -> None:
        """Write back what has changed."""
        for name, ledger in super().items():
            assert isinstance(ledger, LmdbLedger)
            assert isinstance(ledger.standings, Standings)
            ledger.standings.write()
            packed = ledger.packed()
            if packed != self._rows[name]:
                self._txn.put(row_of(name), packed, db=self._dbs.policies)
                self._rows[name] = packed
