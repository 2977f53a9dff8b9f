"""Records the activity that operators see beside stats: the busiest clients, the latest refusals and events.

A worker records its own activity once its limiter has a dashboard or an admin API, not before. It publishes an extract
with its stats; the worker that serves a request merges those of all. Entries are bounded in number and in bytes,
whatever clients send.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from threading import Lock
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, ValidationError

from ..core.bans.ban import MAX_KEY_BYTES, MAX_REASON
from ..core.decision import Decision, LimitSet
from ..core.errors import StoreError
from ..core.logs import escaped, logger
from ..core.store import Event
from ..core.windows.hot_keys import HotKeys
from ..limiter import Limiter
from ..limiter.aio import let_others_run
from ..limiter.observers import KINDS, Observer, Outcome, Subscription
from ..stats import Worker
from ..stats.statistics import recording_of
from .messages import AnyText, View

WINDOW_S: Final = 300
"""The window of the busiest clients."""
SHADOW_WINDOW_S: Final = 3_600
KEPT_EVENTS: Final = 500
KEPT_REFUSALS: Final = 500
MAX_REFUSALS_PER_SECOND: Final = 100
"""Further refusals are only counted: recording an event costs more than refusing a request."""
MAX_UNREAD: Final = 256
SECTION: Final = "activity"
"""The name of the published section."""
VERSION: Final = 3
"""The version of its format: workers of two releases share a store during an upgrade."""

_MAX_DETAILS: Final = 16
_MAX_BUCKETS: Final = 16
_MAX_CLIENTS: Final = 1_000
_MAX_SHADOWED: Final = 500
_MAX_KEYS: Final = 4_096
_NEVER_HOT: Final = 2**31 - 1
_OWN: Final = 600
"""How many clients with the most requests, and with the most refusals, are read of this worker."""
_SHARED: Final = 60
"""How many of them are published."""
_SHARED_BYTES: Final = {"clients": 8_000, "refusals": 8_000, "events": 8_000, "shadowed": 4_000}
_BETWEEN: Final = "\n"
"""Separates a rule from a key; no name of a rule contains it."""
_ONLY_LOOKS: Final = re.compile(r":shadow(?:#\d+)?$")
_KINDS: Final = frozenset(KINDS) - {"refused"}
"""The kinds of events that are always recorded; refusals are recorded in part."""
_RELOADS: Final = ("list_reloaded", "list_rejected")
_starting: Final = Lock()


class ClientActivity(View):
    """A busy client, with the names of the limit sets that count it."""

    key: AnyText
    requests: int
    refused: int
    rules: list[str]


def _key(value: object) -> str:
    """Return a key as stored, not escaped, so that it can be passed back to the limiter."""
    return "" if value is None else str(value)[:MAX_KEY_BYTES]


def _text(value: object) -> str:
    return "" if value is None else escaped(str(value), MAX_REASON)


def _text_or_none(value: object) -> str | None:
    return _text(value) or None


Key: TypeAlias = Annotated[AnyText, BeforeValidator(_key)]
Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
TextOrNone: TypeAlias = Annotated[str | None, BeforeValidator(_text_or_none)]


class Refusal(View):
    """A refused request."""

    at: float
    key: Key
    client: Key
    rule: Text
    limit: TextOrNone
    reason: Text
    route: TextOrNone
    method: TextOrNone
    status: int | None
    retry_after_s: float | None
    worker: str = ""

    @classmethod
    def of(cls, event: Event) -> Self:
        """Return the refusal that an event reports."""
        names = cls.model_fields.keys() - {"at", "worker"}
        details: dict[str, Any] = {name: event.details.get(name) for name in names}
        return cls(at=_at(event), **details)


class LoggedEvent(View):
    """An event; `seq` identifies it among the events of all workers."""

    seq: str
    at: float
    kind: str
    message: AnyText
    details: dict[str, str]
    worker: str = ""


class ShadowRefusals(View):
    """How often a shadow rule would have refused a key."""

    rule: AnyText
    key: AnyText
    times: int

    @classmethod
    def of(cls, name: str, times: int) -> Self:
        """Return the count of a rule and a key, which are recorded under one name."""
        rule, _, key = name.partition(_BETWEEN)
        return cls(rule=rule, key=key, times=times)


class WorkerActivity(View):
    """The published activity of a worker, newest entries first."""

    version: Literal[3] = VERSION
    clients: list[ClientActivity]
    refusals: list[Refusal]
    events: list[LoggedEvent]
    shadowed: list[ShadowRefusals]


class ClusterActivity:
    """The activity of all workers.

    Args:
        parts: (name, activity) of each worker.

    Attributes:
        clients: The busiest clients, each once, the most requests first.
        refusals: The latest refusals, newest first.
        events: The latest events, newest first.
        shadowed: (rule, key) -> how often the shadow rule would have refused the key.
    """

    def __init__(self, parts: Iterable[tuple[str, WorkerActivity]]) -> None:
        self.refusals: list[Refusal] = []
        self.events: list[LoggedEvent] = []
        self.shadowed: Counter[tuple[str, str]] = Counter()
        clients: dict[str, ClientActivity] = {}
        for worker, part in parts:
            for one in part.clients:
                client = clients.setdefault(one.key, ClientActivity(key=one.key, requests=0, refused=0, rules=[]))
                client.requests += one.requests
                client.refused += one.refused
                client.rules = list(dict.fromkeys([*client.rules, *one.rules]))
            self.refusals += [refusal.model_copy(update={"worker": worker}) for refusal in part.refusals]
            self.events += [event.model_copy(update={"worker": worker}) for event in part.events]
            for shadowed in part.shadowed:
                self.shadowed[shadowed.rule, shadowed.key] += shadowed.times
        # The entries of one worker are in order, which a stable sort keeps where times are equal.
        self.refusals.sort(key=attrgetter("at"), reverse=True)
        self.events.sort(key=attrgetter("at"), reverse=True)
        self.clients = sorted(clients.values(), key=lambda one: (-one.requests, one.key))


class ActivityRecorder(Observer):
    """Records the activity of one worker; see `of`.

    Decisions, read in batches, yield the requests and refusals of each key and the limit sets that count it. Events
    yield the reasons of refusals, the refusals of shadow rules, and the log of events.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._clock = limiter.engine.now_us
        self._subscription: Subscription | None = None
        self.discard()
        recording = recording_of(limiter)
        self._publisher = recording.publisher
        self._all_workers = recording.all_workers
        limiter.observe(self, kinds=_KINDS)
        self._subscribe()
        self._publisher.add_section(SECTION, self._published, self.discard)

    def discard(self) -> None:
        """Discard everything recorded, which in a child of `fork` is the activity of the parent."""
        self._lock = Lock()
        self._requests = HotKeys(_MAX_CLIENTS, _NEVER_HOT, WINDOW_S)
        self._refused = HotKeys(_MAX_CLIENTS, _NEVER_HOT, WINDOW_S)
        self._shadow = HotKeys(_MAX_SHADOWED, _NEVER_HOT, SHADOW_WINDOW_S, slices=6)
        self._counted_by: dict[str, dict[str, None]] = {}
        self._buckets: dict[str, LimitSet] = {}
        self._events: deque[LoggedEvent] = deque(maxlen=KEPT_EVENTS)
        self._reloads: dict[str, LoggedEvent] = {}
        self._number = 0
        self._refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)
        self._second, self._this_second = -1, 0
        self._unread: deque[Decision] = deque()
        self._reading = Lock()

    @classmethod
    def of(cls, limiter: Limiter) -> ActivityRecorder:
        """Return the recorder of a limiter; the first call starts it."""
        with _starting:
            return limiter.engine.observers.find(ActivityRecorder) or ActivityRecorder(limiter)

    async def all_workers(self) -> ClusterActivity:
        """Return the activity of all workers; if the store does not answer, of this worker only."""
        self._catch_up()
        try:
            sections = await self._all_workers.sections(SECTION)
        except StoreError as error:
            logger.warning("admin: the activity of other workers cannot be read: %s", error)
            sections = []
        return ClusterActivity([(self._publisher.here().name, self._own()), *published_in(sections)])

    def rules_of(self, key: str) -> set[str]:
        """Return the identities of the rules that recently counted a key."""
        with self._lock:
            return {self._buckets[name].rule for name in self._counted_by.get(key, ())}

    def bucket(self, name: str) -> LimitSet | None:
        """Return a limit set that recently counted a key, by its name."""
        return self._buckets.get(name)

    def last_reload(self, name: str) -> LoggedEvent | None:
        """Return the last event of this worker about a list in a file; None if it has not changed."""
        return self._reloads.get(name)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def request(self, outcome: Outcome, /) -> None:
        """Queue the decisions about a request; every `MAX_UNREAD` decisions the queue is read."""
        self._unread.extend(outcome.decisions)
        if len(self._unread) >= MAX_UNREAD:
            self._catch_up()

    def _catch_up(self) -> None:
        """Read the queued decisions, unless another thread is doing so."""
        self._subscribe()
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._read([self._unread.popleft() for _ in range(len(self._unread))])
        finally:
            self._reading.release()

    def _read(self, decisions: Sequence[Decision]) -> None:
        """Count decisions, grouped by their checks: those of a recurring client share one tuple."""
        groups: dict[int, list[Decision]] = {}
        for decision in decisions:
            if decision.checks and not decision.checks[0][0].rule.startswith("slidegate-"):
                groups.setdefault(id(decision.checks), []).append(decision)
        requests: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        with self._lock:
            for group in groups.values():
                checks, times_refused = group[0].checks, sum(not decision.allowed for decision in group)
                for key in {key for _, key, _ in checks}:
                    requests[key] += len(group)
                    refused[key] += times_refused
                for bucket, key, _ in checks:
                    self._remember(bucket, key)
        now_us = self._clock()
        for key, times in requests.items():
            self._requests.hit(key, now_us, times)
            if refused[key]:
                self._refused.hit(key, now_us, refused[key])

    def _remember(self, bucket: LimitSet, key: str) -> None:
        """Remember that a limit set counts a key, for at most `_MAX_KEYS` keys."""
        names = self._counted_by.get(key)
        if names is None:
            if len(self._counted_by) >= _MAX_KEYS:
                # Frequent keys are added again with their next request.
                self._counted_by.clear()
                self._buckets.clear()
            names = self._counted_by[key] = {}
        name = bucket_name(bucket)
        if name not in names and len(names) < _MAX_BUCKETS:
            names[name] = None
            self._buckets[name] = bucket

    # -- events --------------------------------------------------------------------------------------------------------

    def event(self, event: Event, /) -> None:
        """Record an event."""
        if event.kind != "shadow_refused":
            self._record(event)
            return
        rule, key = _text(event.details.get("rule")), _key(event.details.get("key"))
        self._shadow.hit(f"{rule}{_BETWEEN}{key}", self._clock())

    def _record(self, event: Event) -> None:
        details = list(event.details.items())[:_MAX_DETAILS]
        with self._lock:
            self._number += 1
            logged = LoggedEvent(
                seq=f"{self._publisher.worker[:4].hex()}.{self._number}",
                at=_at(event),
                kind=event.kind,
                message=event.message[:1_024],
                details={escaped(str(name), 64): _text(value) for name, value in details},
            )
            self._events.append(logged)
            if event.kind in _RELOADS:
                self._reloads[logged.details.get("list", "")] = logged

    def _subscribe(self) -> None:
        """Subscribe to refusals, unless this second has reached `MAX_REFUSALS_PER_SECOND`."""
        if self._subscription is None and self._clock() // 1_000_000 != self._second:
            with self._lock:
                if self._subscription is None:
                    self._subscription = self._limiter.observe(self._record_refusal, kinds=["refused"])

    def _record_refusal(self, event: Event) -> None:
        second = self._clock() // 1_000_000
        if second != self._second:
            self._second, self._this_second = second, 0
        self._this_second += 1
        self._refusals.append(Refusal.of(event))
        if self._this_second >= MAX_REFUSALS_PER_SECOND:
            with self._lock:
                if self._subscription is not None:
                    self._subscription.remove()
                    self._subscription = None

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _own(self) -> WorkerActivity:
        """Return the activity of this worker."""
        return WorkerActivity.model_validate(dict(self._parts(_OWN)))

    async def _published(self) -> dict[str, Any]:
        """Return the extract for other workers, less than 32 KiB as JSON; yields to other tasks between its parts."""
        self._catch_up()
        await let_others_run()
        published: dict[str, Any] = {"version": VERSION}
        for name, entries in self._parts(_SHARED):
            published[name] = _fitting(entries, _SHARED_BYTES[name])
            await let_others_run()
        return published

    def _parts(self, most: int) -> Iterator[tuple[str, list[Any]]]:
        """Yield the parts of a `WorkerActivity`, each when it is asked for."""
        yield "clients", self._busiest(most)
        yield "refusals", [*reversed(self._refusals.copy())]
        with self._lock:
            events = [*reversed(self._events)]
        yield "events", events
        shadowed = self._shadow.top(self._clock(), _MAX_SHADOWED)[:most]
        yield "shadowed", [ShadowRefusals.of(name, times) for name, times in shadowed]

    def _busiest(self, most: int) -> list[ClientActivity]:
        """Return the clients with the most requests, and those with the most refusals."""
        now_us = self._clock()
        refused = dict(self._refused.top(now_us, _MAX_CLIENTS))
        requests = dict(self._requests.top(now_us, 2 * _MAX_CLIENTS))
        named = dict.fromkeys([*list(requests)[:most], *list(refused)[:most]])
        with self._lock:
            return [
                ClientActivity(
                    key=key,
                    requests=max(requests.get(key, 0), refused.get(key, 0)),
                    refused=refused.get(key, 0),
                    rules=list(self._counted_by.get(key, ())),
                )
                for key in named
            ]


def published_in(sections: Iterable[tuple[Worker, Any]]) -> Iterator[tuple[str, WorkerActivity]]:
    """Yield (name, activity) of each worker; sections of another format are skipped."""
    for worker, value in sections:
        with suppress(ValidationError):
            yield worker.name, WorkerActivity.model_validate(value)


def only_looks(rule: str) -> bool:
    """Return whether the identity of a rule is that of a shadow rule, which never refuses."""
    return _ONLY_LOOKS.search(rule) is not None


@lru_cache(maxsize=_MAX_KEYS)
def bucket_name(bucket: LimitSet) -> str:
    """Return a name for a limit set that is the same in every worker: its rule and its limits.

    A rule whose limits depend on the client has several limit sets.
    """
    return f"{bucket.rule} {'; '.join(map(str, bucket.limits))}"[:256]


def _fitting(entries: Iterable[View], most_bytes: int) -> list[dict[str, Any]]:
    """Return the first entries that fit into `most_bytes` of JSON."""
    fitting: list[dict[str, Any]] = []
    left = most_bytes
    for entry in entries:
        shown = entry.model_dump()
        left -= len(json.dumps(shown)) + 2
        if left < 0:
            break
        fitting.append(shown)
    return fitting


def _at(event: Event) -> float:
    return event.time_us / 1_000_000 if event.time_us else time.time()
