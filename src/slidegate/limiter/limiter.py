"""The `Limiter`: the public methods of limits, over one store; `commands` has those of operators.

`SyncLimiter` are the most used of them for threads without an event loop; `sync_runner` says where these run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Self, TypedDict, TypeVar, Unpack

from ..core.arguments import check_name, check_whole
from ..core.bans.ban import Ban, BanSubject, clean_reason
from ..core.bans.policy import BanPolicy, may_ban
from ..core.buckets import Bucket, Check
from ..core.decision import Decision
from ..core.errors import ConfigurationError, quoted
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit
from ..core.memo import remember
from ..core.options import checked_value, options_checked
from ..core.passwords import AnyAddress, AnySecret
from ..core.store import BanStore, Store
from ..stores.memory.store import MemoryStore
from .aio import answer_of, to_the_end
from .bans import NetworkKey, files_of
from .callers import BucketCaller
from .commands import Commands
from .decorator import Limited, LimitedKey
from .engine import Engine
from .failover import DEADLINE, ON_ERROR, OnError, deadline_us_of
from .inspect import KeyView, read_keys
from .keys import AnyKey, Limits, read_secret
from .named_limits import NamedLimit
from .observers import AnyObserver, Subscription
from .overrides import published_as
from .rows import Row
from .short_lived import note as note_in_memory
from .sync_runner import SyncRunner

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_RULE: Final = "hit"


class LimiterOptions(TypedDict, total=False):
    """The options of a `Limiter` beside its store."""

    secret: AnySecret | None
    observers: Iterable[AnyObserver]
    deadline: str | timedelta
    on_error: OnError
    networks: Iterable[NetworkKey]


class Limiter(Commands):
    """Counts keys against limits, and refuses banned keys.

    Safe to share between threads and event loops; use one for the whole application.

    A ban by hand of an address or network refuses every address in it. A bare IPv6 address means its /64;
    ``2001:db8::1/128`` is that single address. A ban of any other key, or by a policy, refuses the requests that are
    counted under its key, or struck by it.

    Args:
        store: The store that keeps the counts; by default a new `MemoryStore`.
        secret: The key for digests of API keys and similar values, 16 to 64 bytes; by default that in the environment
            variable ``SLIDEGATE_SECRET``, if it is set. Limiters with the same secret, or without one, make the same
            digests; a worker reports others on its store with another one. Set one if values can be guessed, as emails
            can.
        observers: Receive events and, if they have a method `request`, the outcomes of requests; see `observe`.
        deadline: How long a store may take to answer a request, 1 ms to 60 s.
        on_error: What decides when the store fails or misses the deadline. ``"local"``: a memory store of this process;
            ``"allow"``: everything passes; ``"deny"``: everything is refused, over HTTP with 503.
        networks: Keys such as ``network("GeoLite2-ASN.mmdb")``, whose files map addresses to operators: for bans of
            operators, ``limiter.ban("asn:132203", "1d")``, and for the dashboard.

    Raises:
        ConfigurationError: `store` is not a store, an observer cannot be called, the secret is too short or long, or
            another value is invalid.
    """

    @options_checked
    def __init__(
        self,
        store: Store | None = None,
        *,
        secret: AnySecret | None = None,
        observers: Iterable[AnyObserver] = (),
        deadline: str | timedelta = DEADLINE,
        on_error: OnError = ON_ERROR,
        networks: Iterable[NetworkKey] = (),
    ) -> None:
        if store is None:
            store = MemoryStore()
        if not isinstance(getattr(store, "bans", None), BanStore):
            raise ConfigurationError(
                f"store: {store!r} has no bans; set self.bans in its __init__, for example to MemoryStore().bans"
            )
        self.store = store
        """The store that keeps the counts."""
        self.engine = Engine(self.store, secret, observers, deadline, on_error, files_of(networks))
        """The interface for the middlewares of this package. Not public: any release may change it."""
        self.digest = self.engine.keys.digest
        """Returns a key of at most 64 bytes for a kind and a value that must not be readable: ``kind#1f3a…``. Limiters
        with the same secret, or without one, return the same key."""
        self._buckets: dict[tuple[str, object], Bucket] = {}
        if self.engine.per_process:
            note_in_memory(self)

    @classmethod
    def from_url(
        cls, url: AnyAddress, *, read_only: bool = False, create: bool = True, **options: Unpack[LimiterOptions]
    ) -> Limiter:
        """Create a limiter from an address.

        Args:
            url: ``"memory://"``, ``"lmdb:///var/lib/app/slidegate"``, ``"redis://localhost:6379/0"`` or another Redis
                address; with options ``"memory://?max_keys=50000&max_bans=1000"``. Or as an object, such as pydantic's
                `RedisDsn` or `SecretStr`.
            read_only: Whether the store must already exist and is only read, for tools: every change raises
                `StoreUnavailable`, whatever `on_error` is, and no middleware takes this limiter.
            create: Whether to create what does not exist; a command of an operator does not, because after a mistyped
                address it would change a store that no application uses.
            options: As for the constructor.

        Raises:
            ConfigurationError: The scheme or an option is unknown, or a value is invalid.
            StoreUnavailable: The store does not exist or cannot be used, and may not be created.
        """
        from ..stores.open_store import open_store  # most limiters are created from a store object

        # What the constructor checks, too: before a store is opened, which may create files.
        checked_value("on_error", options.get("on_error", ON_ERROR), "Limiter")
        deadline_us_of(options.get("deadline", DEADLINE))
        read_secret(options.get("secret"))
        return cls(open_store(url, read_only=read_only, create=create), **options)

    # -- limits --------------------------------------------------------------------------------------------------------

    def key_for(self, key: AnyKey) -> str:
        """Return the form of `key` that stores use: the same for all spellings of an address, and at most 64 bytes.

        Raises:
            ConfigurationError: `key` is not text, or empty.
        """
        return self.engine.keys.normalize(key)[0]

    async def hit(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Charge `cost` units to `key` if every limit has room for them.

        Args:
            key: The client, or anything else to count by, for example ``"user:42"``, an address, or
                ``header("X-API-Key").of("k123")``.
            limits: ``"5/minute; 50/hour"``, a `Limit`, a `Quota`, or several.
            cost: Units, 0 or more. A cost of 0 charges nothing and passes while a unit is left.
            rule: A name. Each rule has separate counts, even for the same key.

        Returns:
            The decision; it is true in a condition if the request may pass.

        Raises:
            ConfigurationError: The limits, the key or the cost are invalid.
        """
        engine = self.engine
        checks: Sequence[Check]
        subjects: Sequence[BanSubject]
        try:  # a known key under known limits: by `_question` alone a hit takes a tenth longer
            text, subjects = engine.keys.cache[key]
            checks = ((self._buckets[rule, limits], text, cost),)
        except (KeyError, TypeError):
            checks = ()
        if not checks or type(cost) is not int or cost < 0:
            checks, subjects = self._question(key, limits, rule, cost)
        answer = engine.hit(checks, subjects)
        return answer if isinstance(answer, Decision) else await answer

    async def peek(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Return what `hit` would return now. Changes nothing."""
        checks, subjects = self._question(key, limits, rule, cost)
        return await answer_of(self.engine.peek(checks, subjects))

    async def charge(self, key: AnyKey, limits: Limits, units: int, *, rule: str = DEFAULT_RULE) -> Decision:
        """Record units that are known only now, even beyond the limit; the excess refuses the next requests.

        Like all units, the excess expires after about one window. A window counts at most 2**32 - 1 units, twice the
        largest amount.

        Returns:
            An allowed decision, which has the key's state after the charge and can be refunded.
        """
        checks, _ = self._question(key, limits, rule, units, "units")
        return await to_the_end(self.engine.charge(checks))

    async def refund(self, decision: Decision) -> bool:
        """Refund the units, but no permits, that `decision` charged. Cancelling the call does not interrupt it.

        The decision has to be one of this limiter: another limiter would look for its units in another store.

        Returns:
            False, with nothing changed, for a refused decision, a second call, or a charge that has expired.
        """
        with self.engine.refunding:
            charges = decision.begin_refund(permits=False)
        return await self.engine.refund(charges)

    async def reset(self, key: AnyKey, *, rule: str | None = None) -> bool:
        """Forget the windows of `key`. Returns False if there were none.

        Permits of requests in progress are kept. What workers have counted by themselves during an outage of the store
        is not forgotten.

        Args:
            key: The key, as for `hit`.
            rule: The name of one rule, or its label: as `hit`, a `Rule` or a `RateLimit` has it. All its windows are
                forgotten, those of preflights too. By default those of every rule.

        Raises:
            ConfigurationError: The key is invalid; or no worker has a rule of this name, and it is nearly one that they
                have.
            StoreError: The store does not answer.
        """
        text = self.key_for(key)
        names: set[str] = set()
        checked_value("rule", rule, "reset")
        if rule is not None:
            published = await published_as(await self.published(), rule, "rule")
            names = {rule, *[one.bucket for rules in published for one in rules]}
            names |= {f"{name}:preflight" for name in names}
        try:
            return await self.engine.command(partial(self.store.reset, text, names))
        finally:
            self.engine.queues.wake()

    async def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule, quotas too. Returns False if no units were spent.

        Bans, strikes and the permits of requests in progress are kept. The first waiter of each queue of this process
        asks again immediately. Other workers may repeat cached refusals for up to a second. What workers have counted
        by themselves during an outage of the store is not forgotten.

        Raises:
            StoreError: The store does not answer; some windows may have been reset.
        """
        try:
            return await self.engine.command(self.store.reset_all)
        finally:
            self.engine.queues.wake()

    async def inspect(self, key: AnyKey, rules: Mapping[str, Limits] | None = None) -> KeyView:
        """Return all windows of `key`, slice by slice. Changes nothing.

        The limits that a function returns are not known here: `KeyView.by_function` names their rules; pass what the
        function returns for `key` as `rules`. Units that this process counted during an outage are not included.

        Args:
            rules: Limits by rule identity, as in `LimitState.rule`; by default those of all middlewares with this
                limiter, and those recently used with its methods. In place of limits one `Concurrency`, for permits.

        Raises:
            ConfigurationError: The key or the limits are invalid.
            StoreError: The store does not answer.
        """
        buckets = [*self._buckets.values()]
        if rules is None:
            for caller in self.engine.callers.all():
                buckets += caller.buckets()
        else:
            buckets = _inspected_buckets(rules)
        (view,) = await read_keys(self.engine.command, self.store, [(self.key_for(key), buckets)])
        return view

    async def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """Count a strike of `key` under a policy, and return the ban if it caused one.

        Nothing is counted while the key is banned, for an address that the policy may not ban, or for a network wider
        than a /24 or a /48.

        Args:
            key: The key to strike. Write ``f"user:{name}"`` if users choose the name: a bare name that parses as an
                address or network strikes that.
            policy: The policy under which the strike counts.
            weight: The number of strikes that it counts as, 1 or more.
            reason: For the operator, if the strike bans.

        Raises:
            ConfigurationError: The key or the weight is invalid.
            StoreUnavailable: The store does not answer, and `on_error` is ``"deny"``: whether it bans is not known.
        """
        check_whole(weight, 1, 2**31 - 1, "strike: weight", "for example 1")
        spelled = self._ban_key(key)
        if not may_ban(policy, spelled):
            return None
        return await to_the_end(self.engine.strike(policy, spelled, weight, clean_reason(reason)))

    # -- observers ---------------------------------------------------------------------------------------------------

    def observe(self, observer: AnyObserver) -> Subscription:
        """Subscribe an observer to events and outcomes from now on.

        Args:
            observer: An `Observer`, any other object with a method `event` or `request`, or a function of an event.
                Its exceptions are logged. It is called in the thread of the event, and must not block it.

        Returns:
            The subscription: `remove()` ends it.

        Raises:
            ConfigurationError: `observer` cannot be called.
        """
        return self.engine.observers.subscribe(observer)

    # -- what tools read -----------------------------------------------------------------------------------------------

    @property
    def middlewares(self) -> tuple[Any, ...]:
        """The `RateLimitMiddleware` objects of this process that use this limiter, oldest first."""
        return tuple(caller for caller in self.engine.callers.all() if not isinstance(caller, BucketCaller))

    @property
    def is_failing(self) -> bool:
        """Whether there is an outage of the store, so that `on_error` decides; always False for a memory store."""
        return self.engine.failover is not None and self.engine.failover.breaker.is_open

    @property
    def failures(self) -> int:
        """How many calls of the store by this process have failed, or were answered after the deadline."""
        return 0 if self.engine.failover is None else self.engine.failover.breaker.failures

    @property
    def queued(self) -> int:
        """How many requests of this process wait for room now."""
        return self.engine.queues.waiting

    @property
    def deadline_us(self) -> int | None:
        """How long the store may take to answer a request, in microseconds; None for a memory store."""
        return None if self.engine.failover is None else self.engine.failover.deadline_us

    @property
    def on_error(self) -> OnError | None:
        """What decides when the store fails; None for a memory store, which cannot."""
        return None if self.engine.failover is None else self.engine.failover.on_error

    def limits(self) -> list[NamedLimit]:
        """Return the limits of this process: those of rules, and of routes, functions, blocks and transports so far."""
        by_identity = {
            (limit.rule, limit.name, limit.shadow, limit.configured): limit for limit in self.engine.callers.limits()
        }
        return [*by_identity.values()]

    async def now_us(self) -> int:
        """Return the time of the store in microseconds, the same for all workers that share it.

        Raises:
            StoreError: The store does not answer.
        """
        return await self.engine.rows.time()

    async def keep_row(self, kind: str, number: int, value: bytes, kept_us: int) -> None:
        """Keep a row of this worker for all workers that share the store, replacing its row of the same number.

        A memory store shares nothing, so this process keeps the row.

        Args:
            kind: What the row is, 1 to 40 characters of ``a-z``, ``0-9``, ``-`` and ``_``.
            number: Its number among the rows of its kind, 0 or more, for example that of a time slice.
            value: At most 1 MiB.
            kept_us: When it expires, in microseconds from now; 0 deletes it.

        Raises:
            ConfigurationError: A value is invalid.
            StoreError: The store does not answer, or has no room for rows.
        """
        await self.engine.rows.keep(kind, number, value, kept_us)

    async def rows(self, kind: str, first: int = 0, last: int = 0) -> list[Row]:
        """Return the rows of all workers with a number from `first` to `last`, both included.

        Raises:
            ConfigurationError: A value is invalid.
            StoreError: The store does not answer.
        """
        return await self.engine.rows.read(kind, first, last)

    # -- functions, threads, and the end -------------------------------------------------------------------------------

    @property
    def sync(self) -> SyncLimiter:
        """The blocking interface of this limiter, for threads without an event loop: scripts, WSGI, Celery."""
        return SyncLimiter(self)

    def limited(
        self,
        limits: Limits,
        *,
        key: LimitedKey,
        cost: int = 1,
        wait: str | timedelta | None = None,
        rule: str | None = None,
    ) -> Limited:
        """Limit calls: as a decorator of a sync or async function, or as ``async with`` around a block.

        In a thread without an event loop, a decorated sync function and ``with`` work like `sync`.

        Args:
            limits: As for `hit`.
            key: The key to count by: text, or for a decorator a plain function of the arguments of the call.
            cost: Units of one call, at most the amount of each limit.
            wait: ``"2s"``: a call waits up to this long if there will be room in that time; else it is refused.
            rule: A name. By default that of the decorated function behind its module, ``mail.send``, and of all blocks
                ``limited``. Calls of the same rule and key are counted together, also of two functions of one name.

        Raises:
            ConfigurationError: A value is invalid.
            RateLimitExceeded: In the call, if it is refused.
        """
        return Limited(self.engine, limits, key, cost, wait, rule)

    async def close(self) -> None:
        """Await the method `end` of observers, and close the store. A second call does nothing.

        All later calls raise `StoreUnavailable`, whatever `on_error` is; a refund returns False.
        """
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _question(
        self, key: AnyKey, limits: Limits, rule: str, cost: int, option: str = "cost"
    ) -> tuple[Sequence[Check], Sequence[BanSubject]]:
        """Return the checks of a call, and the further subjects whose bans refuse it.

        Args:
            option: The name of the units in an error message.
        """
        check_cost(cost, option)
        if isinstance(limits, list):
            limits = tuple(limits)
        try:
            bucket = self._buckets.get((rule, limits))
        except TypeError:  # not hashable
            bucket = None
        if bucket is None:  # not within `except`, whose error may show a password that was given by mistake
            bucket = Bucket(check_name(rule, "rule"), parse_limits(limits))
            remember(self._buckets, (rule, limits), bucket)
        text, subjects = self.engine.keys.normalize(key)
        return ((bucket, text, cost),), subjects


def _blocking(
    method: Callable[Concatenate[Limiter, P], Coroutine[Any, Any, T]],
    run: Callable[[SyncRunner, Coroutine[Any, Any, T]], T],
) -> Callable[Concatenate[SyncLimiter, P], T]:
    """Return a method of `SyncLimiter` that does what one of `Limiter` does, and blocks."""

    @wraps(method)
    def blocking(self: SyncLimiter, /, *args: P.args, **options: P.kwargs) -> T:
        return run(self._limiter.engine.sync_runner, method(self._limiter, *args, **options))

    return blocking


async def _listed(limiter: Limiter) -> list[Ban]:
    """Return the bans in force."""
    return [ban async for ban in limiter.bans()]


class SyncLimiter:
    """The most used methods of `Limiter` as blocking calls: what `Limiter.sync` returns.

    Safe to share between threads, and after `fork`. A thread with a running event loop must not call it. If a thread is
    interrupted while it waits for the store, as by Ctrl-C, the units may stay charged.

    All methods may raise:
        ConfigurationError: An event loop runs in this thread; or a value is invalid, as for the `Limiter` method.
        StoreTimeout: The thread that queries the store is blocked, for example by an observer.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    hit = _blocking(Limiter.hit, SyncRunner.run_query)
    peek = _blocking(Limiter.peek, SyncRunner.run_query)
    charge = _blocking(Limiter.charge, SyncRunner.run_query)
    refund = _blocking(Limiter.refund, SyncRunner.run_query)
    strike = _blocking(Limiter.strike, SyncRunner.run_query)
    reset = _blocking(Limiter.reset, SyncRunner.run_command)
    reset_all = _blocking(Limiter.reset_all, SyncRunner.run_command)
    inspect = _blocking(Limiter.inspect, SyncRunner.run_command)
    ban = _blocking(Limiter.ban, SyncRunner.run_command)
    unban = _blocking(Limiter.unban, SyncRunner.run_command)
    banned = _blocking(Limiter.banned, SyncRunner.run_command)
    bans = _blocking(_listed, SyncRunner.run_command)

    def close(self) -> None:
        """Close the limiter and its store, and end the thread that serves it. A second call does nothing."""
        runner = self._limiter.engine.sync_runner
        try:
            runner.run_command(self._limiter.close())
        finally:
            runner.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_cost(cost: object, option: str = "cost") -> int:
    """Return `cost` if it is a whole number of units, 0 or more.

    Args:
        option: The name of the value in the error message.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        raise ConfigurationError(f"expected a whole number, 0 or more, for example 1, not {quoted(cost)}", option)
    return cost


async def inspect_keys(limiter: Limiter, keys: Iterable[tuple[AnyKey, Mapping[str, Limits]]]) -> list[KeyView]:
    """Return the windows of several keys, as `Limiter.inspect` does: a hundred checks in one question to the store.

    Args:
        keys: Each key with its rules; see `Limiter.inspect`.

    Raises:
        StoreError: The store does not answer.
    """
    with_buckets = [(limiter.key_for(key), _inspected_buckets(rules)) for key, rules in keys]
    return await read_keys(limiter.engine.command, limiter.store, with_buckets)


def _inspected_buckets(rules: Mapping[str, Limits]) -> list[Bucket]:
    return [Bucket(rule, _inspected(limits)) for rule, limits in rules.items()]


def _inspected(limits: Limits) -> tuple[AnyLimit, ...]:
    """Return limits to look at, among which permits stand alone."""
    if isinstance(limits, AnyLimit):
        return (limits,)
    return parse_limits(limits)
