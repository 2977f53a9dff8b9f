"""One worker sees its busiest clients, its last refusals, its events.

An onlooker is made with the first console of a limiter; before that nothing of this happens. It is fed from two sides:

* decisions, many at once, say who asks how often, who is refused, and which buckets count whom;
* events, one at a time, say why a request was refused, whom a shadow would have refused, and
  what happened besides.

All of it has a bound, in entries and in bytes: a client chooses neither how many there are nor how long they get.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, TypedDict

from ..core.bans.in_force import MAX_KEY_BYTES, shown
from ..core.decision import Bucket, Check, Decision
from ..core.statistics.hot_keys import HotKeys
from ..core.store import Clock, Event
from ..limiter.events import KINDS

WINDOW_S: Final = 300
"""The time that the busiest clients are about."""
SHADOW_WINDOW_S: Final = 3_600
KEPT_EVENTS: Final = 500
KEPT_REFUSALS: Final = 500
MOST_A_SECOND: Final = 100
"""How many events of refusals an onlooker takes in a second."""
MOST_DETAILS: Final = 16
MAX_UNREAD: Final = 256
"""How many decisions are kept before they are read."""
MOST_BUCKETS: Final = 16
"""Of how many buckets of one key the onlooker knows."""
_CAPACITY: Final = 1_000
_SHADOW_CAPACITY: Final = 500
_NEVER_HOT: Final = 2**31 - 1
_MOST_KEYS: Final = 4_096
_BETWEEN: Final = "\n"
"""Stands between a rule and a key; no rule's name has it."""
_UNCOUNTED: Final = re.compile(r"^slidegate-|:(?:shadow|track)(?:#\d+)?$")
"""Finds the rules that count no requests of clients: those of operators' tools, and those that only look on, each of
which asks a question of its own about a request that has been counted already."""
LOGGED: Final = frozenset(KINDS) - {"refused", "shadow_refused", "near_limit"}
"""The kinds for `Onlooker.hear`: not those that come with every request, or they would push all others out."""


class Refusal(TypedDict):
    """A refusal, as the API shows it."""

    at: float
    key: str
    client: str
    rule: str
    limit: str | None
    reason: str
    route: str | None
    method: str | None
    status: int | None
    retry_after_s: float | None
    worker: str


class Logged(TypedDict):
    """An event, as the API shows it, with its number in this worker's log."""

    number: int
    at: float
    kind: str
    message: str
    details: dict[str, str]


class Busy(TypedDict):
    """A busy client, with the identities of the rules that count it."""

    key: str
    requests: int
    refused: int
    rules: list[str]


class UnreadDecisions:
    """Decisions that wait to be read, many at once: to add one costs no more than a place in a queue.

    Args:
        read: Reads decisions, in their order; one call at a time. It must not raise.
    """

    def __init__(self, read: Callable[[Sequence[Decision]], object]) -> None:
        self._read = read
        self._unread: deque[Decision] = deque()
        self._reading = Lock()

    def __len__(self) -> int:
        return len(self._unread)

    def add(self, decision: Decision) -> None:
        """Add a decision, and have all of them read where they are many."""
        self._unread.append(decision)
        if len(self._unread) >= MAX_UNREAD:
            self.read()

    def read(self) -> None:
        """Have all of them read. Where another thread does so already, it reads all."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._read([self._unread.popleft() for _ in range(len(self._unread))])
        finally:
            self._reading.release()


class Onlooker:
    """Keeps what an operator may ask about, of one worker.

    Args:
        clock: Returns microseconds; the time of decisions.
        wall_us: Returns microseconds of Unix time, for events that carry none.
    """

    def __init__(self, clock: Clock, wall_us: Clock = lambda: time.time_ns() // 1_000) -> None:
        self._clock = clock
        self._wall_us = wall_us
        self._lock = Lock()
        self._requests = HotKeys(_CAPACITY, _NEVER_HOT, WINDOW_S)
        self._refused = HotKeys(_CAPACITY, _NEVER_HOT, WINDOW_S)
        self._shadow = HotKeys(_SHADOW_CAPACITY, _NEVER_HOT, SHADOW_WINDOW_S, slices=6)
        self._counted_by: dict[str, dict[str, None]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._names: dict[Bucket, str] = {}
        self._events: deque[Logged] = deque(maxlen=KEPT_EVENTS)
        self._refusals: deque[Event] = deque(maxlen=KEPT_REFUSALS)
        self._number = 0
        self._second, self._heard = -1, 0

    # -- to tell it -------------------------------------------------------------------------------------------------

    def read(self, decisions: Sequence[Decision]) -> None:
        """Read decisions: of a client that comes again and again, all have one and the same tuple of checks."""
        by_checks: dict[int, tuple[Sequence[Check], list[int]]] = {}
        for decision in decisions:
            if decision.checks and not _UNCOUNTED.search(decision.checks[0][0].rule):
                counts = by_checks.setdefault(id(decision.checks), (decision.checks, [0, 0]))[1]
                counts[0] += 1
                counts[1] += not decision.allowed
        asked: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        with self._lock:
            for checks, (times, times_refused) in by_checks.values():
                for key in {key for _, key, _ in checks}:
                    asked[key] += times
                    refused[key] += times_refused
                for bucket, key, _ in checks:
                    self._learn(bucket, key)
        now_us = self._clock()
        for key, times in asked.items():
            self._requests.hit(key, now_us, times)
            if refused[key]:
                self._refused.hit(key, now_us, refused[key])

    def hear_refusal(self, event: Event) -> bool:
        """Hear that a request was refused.

        Returns:
            Whether to be told of more in this second: an event of a refusal costs more than the refusal itself.
        """
        second = self._clock() // 1_000_000
        if second != self._second:
            self._second, self._heard = second, 0
        self._heard += 1
        self._refusals.append(event)
        return self._heard < MOST_A_SECOND

    def rested(self) -> bool:
        """Return whether another second has begun since `hear_refusal` heard an event."""
        return self._clock() // 1_000_000 != self._second

    def hear_shadow(self, event: Event) -> None:
        """Hear that a shadow rule would have refused a request."""
        rule, key = _text(event.details.get("rule")), _key(event.details.get("key"))
        self._shadow.hit(f"{rule}{_BETWEEN}{key}", self._clock())

    def hear(self, event: Event) -> None:
        """Hear any other event."""
        details = list(event.details.items())[:MOST_DETAILS]
        written = {shown(str(name))[:64]: _text(value) for name, value in details}
        with self._lock:
            self._number += 1
            logged: Logged = {
                "number": self._number, "at": self._at(event), "kind": event.kind, "message": event.message[:1_024],
                "details": written,
            }  # fmt: skip
            self._events.append(logged)

    # -- to ask it ---------------------------------------------------------------------------------------------------

    def busiest(self, most: int) -> list[Busy]:
        """Return the clients with the most requests, and those with the most refusals."""
        now_us = self._clock()
        refused = dict(self._refused.top(now_us, _CAPACITY))
        requests = dict(self._requests.top(now_us, 2 * _CAPACITY))
        named = dict.fromkeys([*list(requests)[:most], *list(refused)[:most]])
        with self._lock:
            return [
                {
                    "key": key,
                    "requests": max(requests.get(key, 0), refused.get(key, 0)),
                    "refused": refused.get(key, 0),
                    "rules": list(self._counted_by.get(key, ())),
                }
                for key in named
            ]

    def rules_of(self, key: str) -> list[str]:
        """Return the identities of the rules that have counted a key lately."""
        with self._lock:
            return list(self._counted_by.get(key, ()))

    def bucket(self, rule: str) -> Bucket | None:
        """Return a bucket that has counted lately, by the identity of its rule and its limits as `busiest` has them."""
        return self._buckets.get(rule)

    def would_refuse(self, most: int) -> list[tuple[str, str, int]]:
        """Return (rule, key, times) of those whom shadow rules would have refused most."""
        return [
            (rule, key, times)
            for name, times in self._shadow.top(self._clock(), most)
            for rule, _, key in [name.partition(_BETWEEN)]
        ]

    def events(self) -> list[Logged]:
        """Return the last events, oldest first."""
        with self._lock:
            return list(self._events)

    def refusals(self) -> list[Refusal]:
        """Return the last refusals, oldest first."""
        return [_refusal(self._at(event), event.details) for event in self._refusals.copy()]

    def _at(self, event: Event) -> float:
        return (event.time_us or self._wall_us()) / 1_000_000

    def _learn(self, bucket: Bucket, key: str) -> None:
        """Remember which bucket counts a key, of the keys that came lately."""
        known = self._counted_by.get(key)
        if known is None:
            if len(self._counted_by) >= _MOST_KEYS:
                # Those who come often are learnt again at once.
                self._counted_by.clear()
                self._buckets.clear()
                self._names.clear()
            known = self._counted_by[key] = {}
        name = self._names.get(bucket)
        if name is None:
            name = self._names[bucket] = name_of(bucket)
        if name not in known and len(known) < MOST_BUCKETS:
            known[name] = None
            self._buckets[name] = bucket


def name_of(bucket: Bucket) -> str:
    """Return a name for a bucket that is the same in every worker: its rule, and whether it holds places.

    Limits that depend on the client make several buckets of one rule, so they are in it.
    """
    return f"{bucket.rule} {'; '.join(map(str, bucket.limits))}"[:256]


def _refusal(at: float, details: Mapping[str, object]) -> Refusal:
    status, retry_after_s = details.get("status"), details.get("retry_after_s")
    return {
        "at": at,
        "key": _key(details.get("key")),
        "client": _key(details.get("client")),
        "rule": _text(details.get("rule")),
        "limit": _text_or_none(details.get("limit")),
        "reason": _text(details.get("reason")),
        "route": _text_or_none(details.get("route")),
        "method": _text_or_none(details.get("method")),
        "status": status if isinstance(status, int) else None,
        "retry_after_s": retry_after_s if isinstance(retry_after_s, (int, float)) else None,
        "worker": "",
    }


def _key(value: Any) -> str:
    """Return a key as it is stored: escaped, it could not be given back to the limiter."""
    return "" if value is None else str(value)[:MAX_KEY_BYTES]


def _text(value: Any) -> str:
    return "" if value is None else shown(str(value))


def _text_or_none(value: Any) -> str | None:
    return None if value is None or value == "" else shown(str(value))
