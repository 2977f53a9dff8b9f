"""The object users hold: a store and the words to talk to it.

Keys are text. One that reads as an address is that address: ``::ffff:192.0.2.7`` is ``192.0.2.7``, a bare IPv6 address
means its /64, and ``2001:db8::1/128`` exactly itself. Everything else is taken as it is, up to 64 bytes; longer keys
are digested with a secret.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from .core.decision import Bucket, Check, Decision
from .core.errors import ConfigurationError, closest
from .core.limits import Limit, check_name, parse_limits
from .core.memo import MEMO_SIZE, remember
from .core.networks import canonical_key
from .core.protocols import Clock, Event, Observer, Store
from .stores.memory import DEFAULT_MAX_KEYS, MemoryStore
from .stores.observers import Observers

MAX_KEY_BYTES: Final = 64
DEFAULT_RULE: Final = "hit"
_MEMO_LENGTH: Final = 256
_NUMBER: Final = re.compile("[0-9]{1,18}")


class Limiter:
    """Counts keys against limits.

    Safe to share between threads and event loops; use one for the whole application.

    Args:
        store: Where the counts live; by default a new `MemoryStore`.
        secret: The key for digests of API keys and the like, 16 to 64 bytes; by default the store's own. Limiters with
            one secret make the same key of the same value.
        observers: Called with each `Event`, for example when the store is full.

    Raises:
        ConfigurationError: `store` is not a store, an observer cannot be called, or the secret is too short or long.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        secret: str | bytes | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        if isinstance(store, str):
            raise ConfigurationError(f"store: expected a store object; write Limiter.from_url({store!r})")
        if store is not None and (isinstance(store, type) or not callable(getattr(store, "hit", None))):
            raise ConfigurationError(f"store: expected a store such as MemoryStore(), not {store!r}")
        self.store: Store = store if store is not None else MemoryStore()
        self._observers = Observers()
        if not isinstance(observers, Iterable):
            raise ConfigurationError(f"observers: expected a list of functions that take an Event, not {observers!r}")
        for observer in observers:
            if not callable(observer):
                raise ConfigurationError(f"observers: expected functions that take an Event, not {observer!r}")
            self._observers.add(observer)
        self.store.observe(self._observers.tell)
        self.decide: Callable[[Sequence[Check]], Decision | Awaitable[Decision]] = self.store.hit
        """`hit_all` without a coroutine of its own where the store answers at once; for code on a hot path."""
        self._secret = self.store.secret if secret is None else _check_secret(secret)
        self._buckets: dict[str, dict[object, Bucket]] = {}
        self._keys: dict[str, str] = {}
        self._digests: dict[tuple[str, bytes], str] = {}
        self._claimed: dict[str, int] = {}
        self._closed = False

    @classmethod
    def from_url(cls, url: str, *, secret: str | bytes | None = None, observers: Iterable[Observer] = ()) -> Limiter:
        """Make a limiter from an address.

        Args:
            url: ``"memory://"``, or with options ``"memory://?max_keys=50000"``.
            secret: As for the constructor.
            observers: As for the constructor.

        Raises:
            ConfigurationError: The scheme or an option is unknown, or a value cannot be read.
        """
        shown = re.sub(r"//[^/]*@", "//***@", url) if isinstance(url, str) else url  # it may hold a password
        expected = f'store address: expected "memory://", not {shown!r}'
        try:
            parts = urlsplit(url)
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError(expected) from None
        if parts.scheme != "memory":
            raise ConfigurationError(f"{expected}{closest(str(parts.scheme), ['memory'])}")
        if parts.netloc or parts.path:
            raise ConfigurationError(f"{expected}: memory has no place")
        max_keys = DEFAULT_MAX_KEYS
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name != "max_keys":
                raise ConfigurationError(f"{expected}: unknown option {name!r}{closest(name, ['max_keys'])}")
            if not _NUMBER.fullmatch(value):
                raise ConfigurationError(f"{expected}: max_keys needs a whole number, not {value!r}")
            max_keys = int(value)
        return cls(MemoryStore(max_keys=max_keys), secret=secret, observers=observers)

    async def hit(
        self, key: str, limits: str | Limit | Sequence[Limit], cost: int = 1, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Charge `cost` units to `key` if every limit has room for them.

        Args:
            key: Who is counted, for example ``"user:42"`` or an address.
            limits: ``"5/minute; 50/hour"``, a `Limit` or several.
            cost: Units, 0 or more. 0 charges nothing and passes while anything is left.
            rule: Windows of different rules are counted apart, also under one key.

        Returns:
            The whole answer; true in a condition if the request may pass.

        Raises:
            ConfigurationError: The limits cannot be read, or the key or the cost cannot be used.
        """
        try:
            bucket = self._buckets[rule][limits]
        except (KeyError, TypeError):
            bucket = self._bucket(rule, limits)
        try:
            known = self._keys[key]
        except (KeyError, TypeError):
            known = self.key_for(key)
        if cost.__class__ is not int or cost < 0:
            check_cost(cost)
        answer = self.decide(((bucket, known, cost),))
        return answer if isinstance(answer, Decision) else await answer

    async def hit_all(self, checks: Sequence[Check]) -> Decision:
        """Charge several buckets and keys together: all of them or none.

        It never sleeps. A `Bucket` with `wait_us` may answer with `Decision.wait_us` above 0: a place is booked, the
        caller sleeps that long and goes on, or hands the place back with `refund`.

        Args:
            checks: (bucket, key, cost) each; the keys are at most 64 bytes long.

        Raises:
            ConfigurationError: A cost is not a whole number, 0 or more.
        """
        for _, _, cost in checks:
            check_cost(cost)
        answer = self.decide(tuple(checks))
        return answer if isinstance(answer, Decision) else await answer

    async def peek(
        self, key: str, limits: str | Limit | Sequence[Limit], cost: int = 1, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        return await self.peek_all(((self._bucket(rule, limits), self.key_for(key), cost),))

    async def peek_all(self, checks: Sequence[Check]) -> Decision:
        """Say what `hit_all` would answer now. Changes nothing."""
        for _, _, cost in checks:
            check_cost(cost)
        answer = self.store.peek(tuple(checks))
        return answer if isinstance(answer, Decision) else await answer

    async def charge(
        self, key: str, limits: str | Limit | Sequence[Limit], units: int, *, rule: str = DEFAULT_RULE
    ) -> Decision:
        """Record units that are known only now, even beyond the limit: what is owed holds the next requests.

        A debt lasts no longer than any unit, about one window. Of a large one as much is kept as holds every request
        until then: `resolution` units where that is not below the amount, else 2**32 - 1 a slice.

        Returns:
            An allowed decision: where the key stands now. It can be refunded.
        """
        return await self.charge_all(((self._bucket(rule, limits), self.key_for(key), units),))

    async def charge_all(self, checks: Sequence[Check]) -> Decision:
        """Record units under several buckets and keys in one step; see `charge`."""
        for _, _, units in checks:
            check_cost(units, "units")
        answer = self.store.charge(tuple(checks))
        return answer if isinstance(answer, Decision) else await answer

    async def refund(self, decision: Decision) -> bool:
        """Hand back what `decision` charged, or the place that it booked.

        Returns:
            False, with nothing changed, for a refused decision, a second call, or a charge that has aged out.
        """
        if not isinstance(decision, Decision):
            raise ConfigurationError(f"refund: expected the Decision that `hit` returned, not {decision!r}")
        answer = self.store.refund(decision)
        return answer if isinstance(answer, bool) else await answer

    async def reset(self, key: str) -> bool:
        """Forget the windows of `key` under every rule. Returns False where there were none."""
        answer = self.store.reset(self.key_for(key))
        return answer if isinstance(answer, bool) else await answer

    async def close(self) -> None:
        """Let go of what the store holds open. A second call does nothing."""
        if not self._closed:
            self._closed = True
            waiting = self.store.close()
            if waiting is not None:
                await waiting

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def per_process(self) -> bool:
        """Whether every process counts for itself."""
        return isinstance(self.store, MemoryStore)

    @property
    def clock(self) -> Clock | None:
        """The clock given to a store of this process; None for the store's own."""
        return self.store.clock if isinstance(self.store, MemoryStore) else None

    def tell(self, event: Event) -> None:
        """Tell the observers of something that happened above the store."""
        self._observers.tell(event)

    def digest(self, kind: str, value: bytes) -> str:
        """Return a key of at most 64 bytes for a value that must not be readable, shown as ``kind#1f3a…``.

        The digest is keyed with the secret: equal for everybody who shares it, and no use elsewhere.
        """
        known = self._digests.get((kind, value))
        if known is None:
            digest = blake2b(kind.encode() + b"\0" + value, key=self._secret, digest_size=16).hexdigest()
            known = f"{kind[: MAX_KEY_BYTES - 33]}#{digest}"
            if len(value) <= _MEMO_LENGTH:
                remember(self._digests, (kind, value), known)
        return known

    def claim(self, rule: str) -> str:
        """Return a rule identity that nobody else has claimed: `rule` for the first caller, ``rule#2`` for the next."""
        count = self._claimed[rule] = self._claimed.get(rule, 0) + 1
        return rule if count == 1 else f"{rule}#{count}"

    def _bucket(self, rule: str, limits: str | Limit | Sequence[Limit]) -> Bucket:
        parsed = parse_limits(limits)
        if sum(map(len, self._buckets.values())) >= MEMO_SIZE:
            self._buckets.clear()
        buckets = self._buckets.setdefault(check_name(rule, "rule"), {})
        bucket = buckets.setdefault(parsed, Bucket(rule, parsed))
        if isinstance(limits, (str, Limit)):
            buckets[limits] = bucket
        return bucket

    def key_for(self, key: str) -> str:
        """Return the spelling of `key` that stores hold: one for each address, at most 64 bytes.

        Raises:
            ConfigurationError: `key` is not text, or empty.
        """
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f'key: expected text that is not empty, for example "user:42", not {key!r}')
        known = canonical_key(key)
        encoded = known.encode(errors="surrogatepass")
        if len(encoded) > MAX_KEY_BYTES:
            known = self.digest("long", encoded)
        if len(key) <= _MEMO_LENGTH:
            remember(self._keys, key, known)
        return known


def _check_secret(secret: object) -> bytes:
    encoded = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(encoded, bytes) or not 16 <= len(encoded) <= 64:
        # Whatever was given may be a secret all the same, so the message does not repeat it.
        raise ConfigurationError("secret: expected 16 to 64 bytes, for example from secrets.token_hex(32)")
    return encoded


def check_cost(cost: object, what: str = "cost") -> int:
    """Return `cost` if it is a whole number of units, 0 or more; `what` is what to call it if it is not.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
        raise ConfigurationError(f"{what}: expected a whole number, 0 or more, for example 1, not {cost!r}")
    return cost
