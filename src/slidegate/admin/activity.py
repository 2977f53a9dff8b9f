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
from hashlib import blake2b
from operator import attrgetter
from threading import Lock
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, ValidationError

from ..core.bans.ban import MAX_KEY_BYTES, MAX_REASON
from ..core.decision import Decision, LimitSet
from ..core.errors import StoreError
from ..core.logs import escaped, logger
from ..core.store import Event
from ..core.windows.hot_keys import HotKeys
from ..limiter import Limiter
from ..limiter.observers import KINDS, Observer, Outcome, Subscription
from ..stats.published import Section
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

_MAX_DETAILS: Final = 16
_MAX_BUCKETS: Final = 16
_MAX_CLIENTS: Final = 1_000
_MAX_SHADOWED: Final = 500
_MAX_KEYS: Final = 4_096
_NEVER_HOT: Final = 2**31 - 1
_SHARED_CLIENTS: Final = 60
_SHARED_BYTES: Final = {"clients": 8_000, "refusals": 8_000, "events": 8_000, "shadowed": 4_000}
_BETWEEN: Final = "\n"
"""Separates a rule from a key; no name of a rule contains it."""
_ONLY_LOOKS: Final = re.compile(r":shadow(?:#\d+)?$")
_LOGGED: Final = frozenset(KINDS) - {"refused", "shadow_refused"}
"""The kinds of events that are kept; events of every request would displace all others."""
_starting: Final = Lock()

T = TypeVar("T")


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
    """An event, with its number in the log of its worker."""

    number: int
    at: float
    kind: str
    message: AnyText
    details: dict[str, str]


class WorkerActivity(View):
    """The published activity of a worker, newest entries first."""

    version: Literal[2] = 2
    """The version of the format: workers of two releases share a store during an upgrade."""
    clients: list[ClientActivity]
    refusals: list[Refusal]
    events: list[LoggedEvent]
    shadowed: list[tuple[str, AnyText, int]]


class ClusterActivity:
    """The activity of all workers.

    Args:
        parts: (name, activity) of each worker.

    Attributes:
        clients: The busiest clients, each once, the most requests first.
        refusals: The latest refusals, newest first.
        events: The events of each worker, oldest first.
        shadowed: (rule, key) -> how often the shadow rule would have refused the key.
    """

    def __init__(self, parts: Iterable[tuple[str, WorkerActivity]]) -> None:
        self.refusals: list[Refusal] = []
        self.events: dict[str, list[LoggedEvent]] = {}
        self.shadowed: Counter[tuple[str, str]] = Counter()
        clients: dict[str, ClientActivity] = {}
        for worker, part in parts:
            for one in part.clients:
                client = clients.setdefault(one.key, ClientActivity(key=one.key, requests=0, refused=0, rules=[]))
                client.requests += one.requests
                client.refused += one.refused
                client.rules = list(dict.fromkeys([*client.rules, *one.rules]))
            self.refusals += [refusal.model_copy(update={"worker": worker}) for refusal in part.refusals]
            self.events[worker] = sorted(part.events, key=attrgetter("number"))
            for rule, key, times in part.shadowed:
                self.shadowed[rule, key] += times
        self.refusals.sort(key=attrgetter("at"), reverse=True)
        self.clients = sorted(clients.values(), key=lambda one: (-one.requests, one.key))


class ActivityRecorder(Observer):
    """Records the activity of one worker; see `of`.

    Decisions, read in batches, yield the requests and refusals of each key and the limit sets that count it. Events
    yield the reasons of refusals, the refusals of shadow rules, and the log of events.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._clock = limiter.engine.now_us
        self._lock = Lock()
        self._requests = HotKeys(_MAX_CLIENTS, _NEVER_HOT, WINDOW_S)
        self._refused = HotKeys(_MAX_CLIENTS, _NEVER_HOT, WINDOW_S)
        self._shadow = HotKeys(_MAX_SHADOWED, _NEVER_HOT, SHADOW_WINDOW_S, slices=6)
        self._counted_by: dict[str, dict[str, None]] = {}
        self._buckets: dict[str, LimitSet] = {}
        self._events: deque[LoggedEvent] = deque(maxlen=KEPT_EVENTS)
        self._number = 0
        self._refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)
        self._second, self._this_second = -1, 0
        self._subscription: Subscription | None = None
        self._subscribing = Lock()
        self._unread: deque[Decision] = deque()
        self._reading = Lock()
        recording = recording_of(limiter)
        self._all_workers = recording.all_workers
        limiter.observe(self)
        limiter.observe(self._record_event, kinds=_LOGGED)
        limiter.observe(self._record_shadow, kinds=["shadow_refused"])
        self._subscribe()
        recording.publisher.add_section(SECTION, self._published)

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
        return ClusterActivity([(self._all_workers.here().name, self._own(10)), *parts_of_others(sections)])

    def rules_of(self, key: str) -> list[str]:
        """Return the names of the limit sets that recently counted a key."""
        with self._lock:
            return list(self._counted_by.get(key, ()))

    def bucket(self, name: str) -> LimitSet | None:
        """Return a limit set that recently counted a key, by its name."""
        return self._buckets.get(name)

    def events(self) -> list[LoggedEvent]:
        """Return the latest events of this worker, oldest first."""
        with self._lock:
            return list(self._events)

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

    def _subscribe(self) -> None:
        """Subscribe to refusals, unless this second has reached `MAX_REFUSALS_PER_SECOND`."""
        if self._subscription is None and self._clock() // 1_000_000 != self._second:
            with self._subscribing:
                if self._subscription is None:
                    self._subscription = self._limiter.observe(self._record_refusal, kinds=["refused"])

    def _record_refusal(self, event: Event) -> None:
        second = self._clock() // 1_000_000
        if second != self._second:
            self._second, self._this_second = second, 0
        self._this_second += 1
        self._refusals.append(Refusal.of(event))
        if self._this_second >= MAX_REFUSALS_PER_SECOND:
            with self._subscribing:
                if self._subscription is not None:
                    self._subscription.remove()
                    self._subscription = None

    def _record_shadow(self, event: Event) -> None:
        rule, key = _text(event.details.get("rule")), _key(event.details.get("key"))
        self._shadow.hit(f"{rule}{_BETWEEN}{key}", self._clock())

    def _record_event(self, event: Event) -> None:
        details = list(event.details.items())[:_MAX_DETAILS]
        with self._lock:
            self._number += 1
            self._events.append(
                LoggedEvent(
                    number=self._number,
                    at=_at(event),
                    kind=event.kind,
                    message=event.message[:1_024],
                    details={escaped(str(name), 64): _text(value) for name, value in details},
                )
            )

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _own(self, factor: int) -> WorkerActivity:
        """Return the activity of this worker."""
        return WorkerActivity(
            clients=self._busiest(factor * _SHARED_CLIENTS),
            refusals=[*reversed(self._refusals.copy())],
            events=self.events()[::-1],
            shadowed=[
                (rule, key, times)
                for name, times in self._shadow.top(self._clock(), factor * _SHARED_CLIENTS)
                for rule, _, key in [name.partition(_BETWEEN)]
            ],
        )

    def _published(self) -> dict[str, Any]:
        """Return the extract for other workers, less than 32 KiB as JSON."""
        self._catch_up()
        own = self._own(1).model_dump()
        return {**own, **{name: _fitting(own[name], most_bytes) for name, most_bytes in _SHARED_BYTES.items()}}

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


def parts_of_others(sections: Iterable[Section]) -> Iterator[tuple[str, WorkerActivity]]:
    """Yield (name, activity) of the other workers; sections of another format are skipped."""
    for section in sections:
        if not section.worker.here:
            with suppress(ValidationError):
                yield section.worker.name, WorkerActivity.model_validate(section.value)


def only_looks(rule: str) -> bool:
    """Return whether the identity of a rule is that of a shadow rule, which never refuses."""
    return _ONLY_LOOKS.search(rule) is not None


@lru_cache(maxsize=_MAX_KEYS)
def bucket_name(bucket: LimitSet) -> str:
    """Return a name for a limit set that is the same in every worker: its rule and its limits.

    A rule whose limits depend on the client has several limit sets.
    """
    return f"{bucket.rule} {'; '.join(map(str, bucket.limits))}"[:256]


def short_name(worker: str) -> str:
    """Return a digest of the name of a worker, 8 characters."""
    return blake2b(worker.encode(), digest_size=4).hexdigest()


def _fitting(entries: Iterable[T], most_bytes: int) -> list[T]:
    """Return the first entries that fit into `most_bytes` of JSON."""
    fitting: list[T] = []
    left = most_bytes
    for entry in entries:
        left -= len(json.dumps(entry)) + 2
        if left < 0:
            break
        fitting.append(entry)
    return fitting


def _at(event: Event) -> float:
    return event.time_us / 1_000_000 if event.time_us else time.time()
