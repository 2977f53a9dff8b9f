"""The users of a limiter in this process: middlewares, limited functions and blocks, and transports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..core.buckets import Bucket
from ..stores.forks import ProcessLock
from .named_limits import NamedLimit, named_limits
from .workers import PublishedRule, rules_of

T = TypeVar("T")


class Caller(Protocol):
    """A user of a limiter."""

    def buckets(self) -> Iterable[Bucket]:
        """Return the known buckets in which it counts."""

    def limits_by_name(self) -> Iterable[NamedLimit]:
        """Return their limits."""

    def published(self) -> Iterable[PublishedRule]:
        """Return what other workers, and tools, may know of its rules."""

    def restart(self) -> None:
        """Treat the next request like the first one: after a switch, or a change of an amount."""


class BucketCaller:
    """A caller with a single bucket. Its owner must keep a reference, because `Callers` keeps a weak one.

    Args:
        about: What is published of its calls: their `cost`, and their `wait_us`.
    """

    def __init__(self, bucket: Bucket, **about: Any) -> None:
        self.bucket = bucket
        self._limits = named_limits(bucket)
        # The key is any that the program passes, and no rule exempts a call.
        about |= {
            "middleware": "calls of functions and blocks",
            "bucket": bucket.name,
            "key": "function",
            "at_endpoint": True,
        }
        self._published = rules_of(self._limits, **about)

    def buckets(self) -> tuple[Bucket]:
        return (self.bucket,)

    def limits_by_name(self) -> list[NamedLimit]:
        return self._limits

    def published(self) -> list[PublishedRule]:
        return self._published

    def restart(self) -> None:
        """Do nothing: it remembers nothing of requests."""


class Callers:
    """The callers of one limiter, each as long as it exists."""

    def __init__(self) -> None:
        self._living: WeakValueDictionary[int, Caller] = WeakValueDictionary()

    def add(self, caller: Caller) -> None:
        """List a caller."""
        self._living[id(caller)] = caller  # by id, as equal callers are several

    def remove(self, caller: Caller) -> None:
        """Forget a caller, which another one replaces."""
        self._living.pop(id(caller), None)

    def all(self) -> list[Caller]:
        """Return the callers, oldest first."""
        return living(self._living)

    def limits(self) -> list[NamedLimit]:
        """Return the limits with which this process counts."""
        return [limit for caller in self.all() for limit in caller.limits_by_name()]

    def published(self) -> Iterator[PublishedRule] | None:
        """Return what is published of their rules; None without callers."""
        callers = self.all()
        if not callers:
            return None
        return chain.from_iterable(caller.published() for caller in callers)

    def restart(self) -> None:
        """Restart all callers, so that they use the amounts in force, and whether limits count."""
        for caller in self.all():
            caller.restart()


def living(objects: WeakValueDictionary[Any, T]) -> list[T]:
    """Return the objects that exist, oldest first, while other threads may add some."""
    existing: list[T] = []
    for reference in objects.valuerefs():
        item = reference()
        if item is not None:
            existing.append(item)
    return existing


class Owners:
    """The middlewares that count without a name, by what they count.

    Args:
        are_alone: Whether only this process counts, so that the order in which they are created is the same for all.
    """

    def __init__(self, *, are_alone: bool) -> None:
        self._are_alone = are_alone
        self._by_rule: dict[str, WeakKeyDictionary[object, int]] = {}
        self._lock = ProcessLock()  # threads may create middlewares at the same time

    def identity(self, rule: str, owner: object) -> str:
        """Return an identity for counts without a name: `rule` for the first owner, ``rule#2`` for the next.

        An owner that asks again gets the same one. Where other processes count as well, all have `rule`: workers may
        create them in another order.

        Args:
            rule: What identifies them in one owner.
            owner: The middleware that counts. An identity is free again when its owner is gone.
        """
        if not self._are_alone:
            return rule
        with self._lock:
            owners = self._by_rule.setdefault(rule, WeakKeyDictionary())
            numbers = set(owners.values())
            number = owners.setdefault(owner, next(free for free in count(1) if free not in numbers))
        if number == 1:
            return rule
        return f"{rule}#{number}"
