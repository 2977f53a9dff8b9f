"""The names of limits in header fields."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .any_limit import AnyLimit


def wire_names(rule: str, limits: Sequence[AnyLimit]) -> tuple[str, ...]:
    """Name each limit for the response headers: its own name, else its rule's, told apart by the window's seconds."""
    if len(limits) == 1:
        return (limits[0].name or rule,)
    names: list[str] = []
    for limit in limits:
        names.append(unique_name(limit.name or f"{rule}-{limit.suffix}", names))
    return tuple(names)


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or ``name-2``, ``name-3`` ... if it is taken."""
    count, unique = 1, name
    while unique in taken:
        count += 1
        unique = f"{name}-{count}"
    return unique
