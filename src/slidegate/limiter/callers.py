"""Who uses a limiter in this process: its middlewares, limited functions and blocks, and transports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from ..core.buckets import Bucket
from .named_limits import NamedLimit, named
from .published import PublishedRule, rules_of

T = TypeVar("T")


class Caller(Protocol):
    """A user of a limiter."""

    def buckets(self) -> Iterable[Bucket]:
        """Return the known buckets in which it counts."""

    def limits_by_name(self) -> Iterable[NamedLimit]:
        """Return their limits."""

    def published(self) -> Iterable[PublishedRule]:
        """Return what other workers, and tools, may know of its rules."""

    def begin_anew(self) -> None:
        """Treat the next request like the first one: after a switch, or a change of an amount."""


class BucketCaller:
    """A caller with a single bucket. Its owner must keep a reference, because `Callers` keeps a weak one."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._named = named(bucket)

    def buckets(self) -> tuple[Bucket]:
        """See `Caller.buckets`."""
        return (self.bucket,)

    def limits_by_name(self) -> list[NamedLimit]:
        """See `Caller.limits_by_name`."""
        return self._named

    def published(self) -> list[PublishedRule]:
        """See `Caller.published`; its key is whatever the program passes."""
        return rules_of(self._named)

    def begin_anew(self) -> None:
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
        found: list[NamedLimit] = []
        for caller in self.all():
            found += caller.limits_by_name()
        return found

    def restart(self) -> None:
        """Let all callers begin anew: they then see the amounts in force, and whether limits count."""
        for caller in self.all():
            caller.begin_anew()


def living(objects: WeakValueDictionary[int, T]) -> list[T]:
    """Return the objects that exist, oldest first, while other threads may add some."""
    found: list[T] = []
    for reference in objects.valuerefs():
        one = reference()
        if one is not None:
            found.append(one)
    return found
