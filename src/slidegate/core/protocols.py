"""The seams: what a store promises, what an observer hears, and the words they exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from .decision import Check, Decision

Clock: TypeAlias = Callable[[], int]
"""Returns the time in whole microseconds, not below 0. Its start does not matter, its rate does."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something an operator may want to know that is not an answer to one request.

    Kinds:
        ``keys_shared``: a store is full, further keys are counted in shared cells.
        ``shadow_refused``: a shadow rule would have refused a request.
        ``config_reloaded``, ``config_rejected``: a configuration file has changed.
        ``windows_restarted``: a rule that was read again has other windows, and counts anew.
    """

    kind: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


class Observer(Protocol):
    """Hears events, in the thread where they happen. Must not block; what it raises is logged and dropped."""

    def __call__(self, event: Event, /) -> None:
        """Take note of `event`."""


class Store(Protocol):
    """Remembers windows. Time belongs to the store, and so does the key that digests what must not be readable.

    A method that needs no waiting returns its answer; one that does returns an awaitable of it. All of them
    may be called from several threads and event loops at once.
    """

    @property
    def secret(self) -> bytes:
        """The key for digests of client-supplied values: the same for everybody who shares this store."""

    def hit(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Charge every check or none, in one step, and say everything about it."""

    def peek(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Say what `hit` would answer now. Changes nothing."""

    def charge(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Record every cost in one step, whatever the limits, and say what is left.

        The decision is allowed, and can be refunded. A ring that cannot count so many units counts as many as it can,
        see `Window.charge`: enough to refuse everything until they leave.
        """

    def refund(self, decision: Decision) -> bool | Awaitable[bool]:
        """Hand back what `decision` charged; False where it charged nothing, did so before or it has aged out."""

    def reset(self, key: str) -> bool | Awaitable[bool]:
        """Forget the windows of `key` under every rule; False where there were none."""

    def observe(self, observer: Observer) -> None:
        """Tell `observer` about this store's events from now on."""

    def close(self) -> Awaitable[None] | None:
        """Let go of what the store holds open. A second call does nothing."""
