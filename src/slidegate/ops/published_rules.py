"""The rules that workers have published, side by side: what each group of equal workers enforces, and what differs.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

Place: TypeAlias = tuple[str, str, str]
"""What one rule is recognised by in all groups: its middleware, its label, and the name of a limit."""

_CLIENT: Final = "client"
_OWN_PREFIXES: Final = (32, 64)


def compared(published: Sequence[Any]) -> dict[str, Any]:
    """Return what groups of equal workers have published, as JSON shows it; see `Limiter.published`.

    Returns:
        The groups with their numbers of workers, and the rules with what each group enforces by them, in the order of
        the groups.
    """
    groups = []
    enforced = []
    for one in published:
        groups.append({"workers": one.workers, "is_readable": one.is_readable, "same_secret": one.same_secret})
        enforced.append(_by_place(one.text.rules))
    places: dict[Place, None] = {}
    for rules in enforced:
        places.update(dict.fromkeys(rules))
    rows = []
    for place in places:
        row = _row(place, [rules.get(place, []) for rules in enforced])
        if row["differs"] or place[1] != _CLIENT:  # how clients are determined is no rule
            rows.append(row)
    return {"groups": groups, "rules": rows}


def _row(place: Place, by_group: Sequence[list[Any]]) -> dict[str, Any]:
    """Return a rule, with what each group enforces by it."""
    middleware, label, name = place
    texts = ["; ".join(dict.fromkeys(map(text_of, rules))) for rules in by_group]
    return {
        "middleware": middleware,
        "rule": label,
        "name": name,
        "by_group": texts,
        "differs": any(rules != by_group[0] for rules in by_group),
    }


def _by_place(rules: Sequence[Any]) -> dict[Place, list[Any]]:
    """Return the rules of some workers by their places, without their numbers, which one more rule changes."""
    found: dict[Place, list[Any]] = {}
    for rule in rules:
        found.setdefault((rule.middleware, rule.rule, rule.name), []).append(replace(rule, order=0))
    return found


def text_of(rule: Any) -> str:
    """Return what a published rule does, in words: ``5/1m by address, POST /login``."""
    words: str = rule.action
    if rule.limit:
        words = rule.limit
    if rule.by_function:
        words = "limits of a function"
    if rule.key:
        words += f" by {rule.key}"
    if (rule.ipv4_prefix, rule.ipv6_prefix) != _OWN_PREFIXES:
        words += f" /{rule.ipv4_prefix} and /{rule.ipv6_prefix}"
    if rule.size == 1:
        words += " of 1 range"
    elif rule.size:
        words += f" of {rule.size:,} ranges"
    if rule.requests and rule.requests not in rule.rule:
        words += f", {rule.requests}"
    if rule.conditional:
        words += ", if a condition holds"
    if rule.shadow:
        words += ", in shadow"
    return words
