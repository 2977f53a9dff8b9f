"""Buckets: names with limits, which checks are made against; and the names of limits in response headers."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from copy import copy
from itertools import count
from typing import TypeAlias

from .limits import AnyLimit, Limit


class Bucket:
    """A name and the limits that count under it, as a store uses them. Created once, reused, and compared by identity.

    Args:
        name: The owner of the windows, 1 to 64 characters; buckets of one name share their windows.
        limits: The limits that apply together, no two with the same window and resolution; or one `Concurrency`.
        names: The name of each limit on the wire; by default the name, or ``name_<seconds>`` where it has several.
        count_denied: Whether requests that are refused for lack of room are also charged.
        unit: The unit that is counted, if not requests: ``"tokens"``.
        label: The name of the rule in stats; by default `name`.
        on_error: What decides while the store fails: "local", "allow" or "deny"; None for the limiter's own choice.
        by: The object that made it, compared by identity: another bucket may have the same name.
        shadow: Whether its rule only reports, and never refuses.
        is_fallback: Whether a function returns the limits of its rule, and these apply only where that fails.

    Attributes:
        configured: The limits as given.
        limits: Copies of the limits, which this bucket and those derived from it own: `AnyLimit.become` changes an
            amount for all of them.
        is_permit: Whether a charge is a permit, which a request holds until it ends, and not units of a window.
    """

    __slots__ = (
        "by",
        "configured",
        "count_denied",
        "is_fallback",
        "is_permit",
        "label",
        "limits",
        "name",
        "names",
        "on_error",
        "shadow",
        "unit",
    )

    def __init__(
        self,
        name: str,
        limits: Sequence[AnyLimit],
        names: Sequence[str] | None = None,
        *,
        count_denied: bool = False,
        unit: str | None = None,
        label: str | None = None,
        on_error: str | None = None,
        by: object = None,
        shadow: bool = False,
        is_fallback: bool = False,
    ) -> None:
        self.name = name
        self.configured = limits
        self.limits = tuple([limit.mutable_copy() for limit in limits])
        self.is_permit = not all(limit.is_listed for limit in self.limits)
        if names is None:
            names = wire_names(name, self.limits)
        self.names = tuple(names)
        self.count_denied = count_denied
        self.unit = unit
        if label is None:
            label = name
        self.label = label
        self.on_error = on_error
        self.by = by
        self.shadow = shadow
        self.is_fallback = is_fallback

    def under(self, name: str) -> Bucket:
        """Return a bucket with the same limits under another name; both have the same amounts for ever."""
        twin = copy(self)
        twin.name = name
        return twin

    @property
    def may_be_leased(self) -> bool:
        """Whether workers may have units charged ahead, if their store does that; see `Limiter.from_url`."""
        is_exact = any(isinstance(limit, Limit) and limit.exact for limit in self.limits)
        return not (self.is_permit or self.count_denied or is_exact)

    def __repr__(self) -> str:
        return f"<Bucket {self.name!r} {'; '.join(map(str, self.limits))}>"


Check: TypeAlias = tuple[Bucket, str, int]
"""One charge of a question: the bucket, the key (at most 64 bytes) and the cost in units (0 or more)."""


def wire_names(rule: str, limits: Sequence[AnyLimit], reserved: Collection[str] = ()) -> tuple[str, ...]:
    """Name each limit for the response headers: its own name, else its rule's; ``name_<seconds>`` if there are several.

    The names consist of letters, digits, ``_`` and ``.``, as all parsers of these headers accept; none is `reserved`.
    """
    names: list[str] = []
    for limit in limits:
        if limit.name:
            name = limit.name
        elif len(limits) == 1:
            name = rule
        else:
            name = f"{rule}_{limit.suffix}"
        names.append(unique_name(spelled(name), {*reserved, *names}))
    return tuple(names)


def spelled(name: str) -> str:
    """Return a name as it is written in response headers."""
    return re.sub("[^A-Za-z0-9_.]", "_", name)


def unique_name(name: str, used_names: Collection[str]) -> str:
    """Return `name`, or ``name_2``, ``name_3`` ... if it is taken."""
    unique = name
    numbers = count(2)
    while unique in used_names:
        unique = f"{name}_{next(numbers)}"
    return unique


def windows_of(check: Check) -> tuple[object, ...]:
    """Return what the checks of the same windows under the same limits have in common."""
    bucket, key, _ = check
    return bucket.name, key, *[(limit.same_window, limit.amount) for limit in bucket.limits]


def uncharged(earlier: Sequence[Check], checks: list[Check]) -> list[Check]:
    """Return the checks without what earlier ones have charged: the same limits of a key count a request once.

    Of several costs the largest one is charged, so a later check charges what is missing.
    """
    charged: dict[object, int] = {}
    for check in earlier:  # in which no window is twice
        charged[windows_of(check)] = check[2]
    missing: list[Check] = []
    for check in checks:
        bucket, key, cost = check
        before = charged.get(windows_of(check))
        if before is None:
            missing.append(check)
        elif cost > before:
            missing.append((bucket, key, cost - before))
    return missing
