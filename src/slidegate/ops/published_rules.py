"""The rules that workers have published, side by side: what each group of equal workers enforces, and what differs.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Place: TypeAlias = tuple[str, str, str]
"""What one rule is recognised by in all groups: its middleware, its label, and the name of a limit."""

ABSENT: Final = ""
"""What a group enforces by a rule that it does not have."""


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
        enforced.append(_enforced(one.text.rules))
    places: dict[Place, None] = {}
    for rules in enforced:
        places.update(dict.fromkeys(rules))
    return {"groups": groups, "rules": [_row(place, enforced) for place in places]}


def _row(place: Place, enforced: Sequence[Mapping[Place, str]]) -> dict[str, Any]:
    """Return a rule, with what each group enforces by it."""
    middleware, label, name = place
    by_group = [rules.get(place, ABSENT) for rules in enforced]
    return {
        "middleware": middleware,
        "rule": label,
        "name": name,
        "by_group": by_group,
        "differs": len({*by_group}) > 1,
    }


def _enforced(rules: Sequence[Any]) -> dict[Place, str]:
    """Return what some workers enforce, in words, by the place of the rule."""
    found: dict[Place, str] = {}
    for rule in rules:
        place = rule.middleware, rule.rule, rule.name
        words = [found[place]] if place in found else []
        found[place] = "; ".join([*words, text_of(rule)])
    return found


def text_of(rule: Any) -> str:
    """Return what a published rule does, in words: ``5/1m by address``."""
    words: str = rule.action
    if rule.limit:
        words = rule.limit
    if rule.by_function:
        words = "limits of a function"
    if rule.key:
        words += f" by {rule.key}"
    if rule.shadow:
        words += ", in shadow"
    return words
