"""The object users hold: a store and the words to talk to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from ..core.bans.in_force import Guarded
from ..core.decision import Bucket, Check, Decision
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit, check_name, parse_limits
from ..core.memo import MEMO_SIZE, remember
from ..core.protocols import Observer, Store
from ..stores.memory.store import MemoryStore
from ..stores.system_clock import system_us
from .aio import within
from .ban_commands import BanCommands
from .engine import Engine
from .events.event_commands import EventCommands
from .events.hub import EventHub
from .events.near_limits import NEAR_LIMIT
from .failover import DEADLINE, ON_ERROR, OnError, check_failure_policy
from .figures.stats import AllStats, Chart, Stats
from .inspect import KeyView, look_at
from .key_spelling import AnyKey, Question
from .sync.limited import Limited, LimitedKey
from .sync.sync_limiter import SyncLimiter
from .sync.without_loop import WithoutLoop

DEFAULT_RULE: Final = "hit"
ONE_UNIT: Final = 1


class Limiter(BanCommands, EventCommands):
    """Counts keys against limits, and refuses those that are banned.

    Safe to share between threads and event loops; use one for the whole application.

    Args:
        store: The store that holds the counts; by default a new `MemoryStore`.
        secret: The key for digests of API keys and the like, 16 to 64 bytes. Limiters with one secret make the same key
            of the same value, and so do those without one. Give one where values can be guessed, as emails can.
        observers: Called with each `Event`, in order, in a thread of their own; see `observe`.
        deadline: How long a store may take to answer a request, 1 ms to 60 s.
        on_error: The answer when the store takes longer or fails. ``"local"``: a memory store of this process decides;
            ``"allow"``: everything passes; ``"deny"``: everything is refused, over HTTP with 503.
        near_limit: The share of a limit from which ``near_limit`` events tell of a key, above 0 and at most 1.

    Raises:
        ConfigurationError: `store` is not a store, an observer cannot be called, the secret is too short or long, or
            another value cannot work.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        secret: str | bytes | None = None,
        observers: Iterable[Observer] = (),
        deadline: str | float | timedelta = DEADLINE,
        on_error: OnError = ON_ERROR,
        near_limit: float = NEAR_LIMIT,
    ) -> None:
        if isinstance(store, str):
            raise ConfigurationError(f"store: expected a store object; write Limiter.from_url({store!r})")
        if store is not None and (isinstance(store, type) or not callable(getattr(store, "hit", None))):
            raise ConfigurationError(f"store: expected a store such as MemoryStore(), not {store!r}")
        self.store: Store = store if store is not None else MemoryStore()
        """The store that holds the counts."""
        events = EventHub(self.store.unix_us if isinstance(self.store, MemoryStore) else system_us)
        if not isinstance(observers, Iterable):
            raise ConfigurationError(f"observers: expected a list of functions that take an Event, not {observers!r}")
        for observer in observers:
            events.subscribe(observer)
        self.engine = Engine(self.store, secret, events, deadline, on_error, near_limit)
        """How the gates of this package ask the store. It is not for users: every release may change it."""
        self._keys = self.engine.keys
        self._known, self._questions = self._keys.known, self._keys.questions
        self.digest = self._keys.digest
        """Makes a key of at most 64 bytes of a kind and a value that must not be readable: ``kind#1f3a…``. It is the
        same for everybody who has the same secret, or none."""
        self._buckets: dict[str, dict[object, Bucket]] = {}
        self._without_loop = WithoutLoop(self.engine)
        self._remembered = 0  # how many questions are remembered
        self._closed = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        secret: str | bytes | None = None,
        observers: Iterable[Observer] = (),
        deadline: str | float | timedelta = DEADLINE,
        on_error: OnError = ON_ERROR,
        near_limit: float = NEAR_LIMIT,
    ) -> Limiter:
        """Make a limiter from an address.

        Args:
            url: ``"memory://"``, ``"lmdb:///var/lib/app/slidegate"``, ``"redis://localhost:6379/0"`` or another of
                Redis; with options ``"memory://?max_keys=50000&max_bans=1000"``.
            secret: As for the constructor.
            observers: As for the constructor.
            deadline: As for the constructor.
            on_error: As for the constructor.
            near_limit: As for the constructor.

        Raises:
            ConfigurationError: The scheme or an option is unknown, or a value cannot be read.
        """
        from .open_store import open_store  # most limiters are made of a store

        check_failure_policy(deadline, on_error)
        return cls(
            open_store(url),
            secret=secret,
            observers=observers,
            deadline=deadline,
            on_error=on_error,
            near_limit=near_limit,
        )

    def key_for(self, key: AnyKey) -> str:
        """Return the spelling of `key` that stores hold: one for each address, at most 64 bytes.

        Raises:
            ConfigurationError: `key` is not text, or empty.
        """
        return self._keys.learn(key)[0]

    async def hit(
        self, key: AnyKey, limits: str | AnyLimit | Sequence[str | AnyLimit], cost: int = 1, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Charge `cost` units to `key` if every limit has room for them.

        Args:
            key: The client or whatever else is counted, for example ``"user:42"``, an address, or
                ``header("X-API-Key").of("k123")``.
            limits: ``"5/minute; 50/hour"``, a `Limit`, a `Quota`, or several.
            cost: Units, 0 or more. A cost of 0 charges nothing and passes while a unit is left.
            rule: A name. Different rules are counted apart, also under one key.

        Returns:
            The whole answer; true in a condition if the request may pass.

        Raises:
            ConfigurationError: The limits cannot be read, or the key or the cost cannot be used.
        """
        try:
            checks, guarded = self._questions[rule][limits][key]
        except (KeyError, TypeError):
            checks, guarded = self._question(key, limits, rule)
        if cost is not ONE_UNIT:
            ((bucket, text, _),) = checks
            checks = ((bucket, text, check_cost(cost)),)
        decide = self.engine.decide_at_once
        if decide is not None:
            return decide(checks, guarded)
        answer = self.engine.decide(checks, guarded)
        return answer if isinstance(answer, Decision) else await answer

    async def hit_all(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Charge several buckets and keys together: all of them or none.

        It never waits: the `wait_us` of a `Bucket` is for gates and `limited`.

        Args:
            checks: (bucket, key, cost) each; the keys are at most 64 bytes long.
            guarded: Further keys whose bans refuse, besides those of the checks; or addresses, as `parse_address` reads
                them, so that bans of their networks refuse as well.

        Raises:
            ConfigurationError: A cost is not a whole number, 0 or more.
        """
        for _, _, cost in checks:
            check_cost(cost)
        answer = self.engine.decide(tuple(checks), guarded)
        return answer if isinstance(answer, Decision) else await answer

    async def peek(
        self, key: AnyKey, limits: str | AnyLimit | Sequence[str | AnyLimit], cost: int = 1, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        known, guarded = self._keys.learn(key)
        return await self.peek_all(((self._bucket(rule, limits), known, cost),), guarded)

    async def peek_all(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Say what `hit_all` would answer now. Changes nothing."""
        for _, _, cost in checks:
            check_cost(cost)
        return await self.engine.peek(tuple(checks), guarded)

    async def charge(
        self, key: AnyKey, limits: str | AnyLimit | Sequence[str | AnyLimit], units: int, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Record units that are known only now, even beyond the limit: then the debt refuses the next requests.

        A debt lasts no longer than any unit, about one window. Of a large debt as much is kept as refuses every request
        until then: `resolution` units where that is not below the amount, else 2**32 - 1 a slice.

        Returns:
            An allowed decision, which shows where the key stands now and can be refunded.
        """
        return await self.charge_all(((self._bucket(rule, limits), self.key_for(key), units),))

    async def charge_all(self, checks: Sequence[Check]) -> Decision:
        """Record units under several buckets and keys in one step; see `charge`."""
        for _, _, units in checks:
            check_cost(units, "units")
        return await self.engine.charge(tuple(checks))

    async def refund(self, decision: Decision) -> bool:
        """Hand back the units that `decision` charged.

        Returns:
            False, with nothing changed, for a refused decision, a second call, or a charge that has aged out.
        """
        if not isinstance(decision, Decision):
            raise ConfigurationError(f"refund: expected the Decision that `hit` returned, not {decision!r}")
        return await self.engine.refund(decision)

    async def reset(self, key: AnyKey) -> bool:
        """Forget the windows of `key` under every rule. Returns False if there were none."""
        text = self.key_for(key)
        try:
            return await within(self.store.reset(text))
        finally:
            self.engine.lines.reset(text)

    async def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule, quotas too. Returns False if there were none.

        Bans and strikes stay, and so do the places of requests under way. Who stands first in a line of this process
        asks again at once. Other workers give up the refusals that they know within a second.

        Raises:
            StoreError: The store does not answer; some windows may be forgotten by then.
        """
        try:
            return await within(self.store.reset_all())
        finally:
            self.engine.lines.reset()

    async def inspect(
        self, key: AnyKey, rules: Mapping[str, str | AnyLimit | Sequence[str | AnyLimit]] | None = None
    ) -> KeyView:
        """Return all windows of `key`, slice by slice. Changes nothing.

        Units that this process counted while the store was away are not shown.

        Args:
            key: The key.
            rules: Limits by the identity of their rule, as `LimitState.rule` has it; by default those of all gates on
                this limiter, and those that its methods were asked about lately.

        Raises:
            ConfigurationError: The key or the limits cannot be used.
            StoreError: The store does not answer.
        """
        if rules is None:
            lately = [bucket for named in list(self._buckets.values()) for bucket in list(named.values())]
            buckets = self.engine.callers.buckets(lately)
        else:
            buckets = [Bucket(check_name(rule, "rule"), parse_limits(limits)) for rule, limits in rules.items()]
        return await look_at(self.store, self.key_for(key), buckets)

    def stats(self, window: str | float | timedelta = "1m") -> Stats:
        """Return counts and times of recent requests, by rule and by route, as the gates of this process saw them.

        Args:
            window: How far back, up to 24 hours; rounded up to 5 seconds, beyond 5 minutes to whole minutes, and beyond
                an hour to 5 minutes.

        Raises:
            ConfigurationError: The window is longer than that.
        """
        return self.engine.statistics.read(window)

    async def stats_all(self, window: str | float | timedelta = "1m") -> AllStats:
        """Return the same of all workers that share the store: this one as it is, the others as they last published.

        A store of this process alone has one worker.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        return await self.engine.all_workers.stats(window)

    def chart(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the figures of this process step by step, at most 288 of them, for a chart.

        Args:
            window: How far back, as for `stats`.
            rule: The name of a rule, for the requests that it counted alone.
            route: A route as `stats` names it, for the requests that went there alone.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
        """
        return self.engine.statistics.chart(window, rule, route)

    async def chart_all(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the same of all workers that share the store.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        return await self.engine.all_workers.chart(window, rule, route)

    @property
    def sync(self) -> SyncLimiter:
        """This limiter for threads without an event loop, where nothing can be awaited: scripts, WSGI, Celery."""
        return SyncLimiter(self, self._without_loop)

    def limited(
        self,
        limits: str | AnyLimit | Sequence[str | AnyLimit],
        *,
        key: LimitedKey,
        cost: int = 1,
        wait: str | float | timedelta | None = None,
        rule: str | None = None,
    ) -> Limited:
        """Hold calls to limits: as a decorator of a function, sync or async, or as ``async with`` around a block.

        In a thread without an event loop a decorated sync function and ``with`` go the way of `sync`.

        Args:
            limits: As for `hit`.
            key: The key to count by: text, or for a decorator a plain function of the arguments of the call.
            cost: Units of one call, no more than the limits hold.
            wait: ``"2s"``: a call whose turn comes within this time waits for it, others are refused.
            rule: A name. By default a decorated function is counted by itself, and all blocks as ``limited``; those of
                one rule and key are counted together.

        Raises:
            ConfigurationError: A value cannot work.
            RateLimited: In the call, if it is refused.
        """
        return Limited(self.engine, self._without_loop, limits, key, cost, wait, rule)

    async def close(self) -> None:
        """Close the store, and wait at most 5 seconds for observers. A second call does nothing."""
        if not self._closed:
            self._closed = True
            await self.engine.close()
            self._without_loop.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _question(self, key: AnyKey, limits: str | AnyLimit | Sequence[str | AnyLimit], rule: str) -> Question:
        """Return what to ask the store for one unit. From the second time on it is remembered."""
        again = True
        try:
            bucket = self._buckets[rule][limits]
        except (KeyError, TypeError):
            bucket, again = self._bucket(rule, limits), False
        try:
            known = self._known[key]
        except (KeyError, TypeError):
            known, again = self._keys.learn(key), False
        text, guarded = known
        question = ((bucket, text, ONE_UNIT),), guarded
        if again:
            if self._remembered >= MEMO_SIZE:
                self._questions.clear()
                self._remembered = 0
            self._remembered += 1
            self._questions.setdefault(rule, {}).setdefault(limits, {})[key] = question
        return question

    def _bucket(self, rule: str, limits: str | AnyLimit | Sequence[str | AnyLimit]) -> Bucket:
        parsed = parse_limits(limits)
        if sum(map(len, self._buckets.copy().values())) >= MEMO_SIZE:
            self._buckets.clear()
        buckets = self._buckets.setdefault(check_name(rule, "rule"), {})
        bucket = buckets.setdefault(parsed, Bucket(rule, parsed))
        if isinstance(limits, (str, AnyLimit)):
            remember(buckets, limits, bucket)
        return bucket


def check_cost(cost: object, what: str = "cost") -> int:
    """Return `cost` if it is a whole number of units, 0 or more.

    Args:
        cost: The value.
        what: The name of the value in the error message.

    Raises:
        ConfigurationError: The value is no such number.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        raise ConfigurationError(f"{what}: expected a whole number, 0 or more, for example 1, not {quoted(cost)}")
    return cost
