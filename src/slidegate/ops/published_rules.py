"""The rules that workers have published, side by side: what each group of equal workers enforces, and what differs.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ..limiter import Publication, PublishedRule


class RuleName(NamedTuple):
    """What one rule is recognised by in all groups.

    Attributes:
        middleware: The name of its middleware.
        label: Its label.
        limit: The name of one of its limits.
    """

    middleware: str
    label: str
    limit: str


_CLIENT: Final = "client"
_OWN_PREFIXES: Final = (32, 64)


def compared(published: Sequence[Publication]) -> dict[str, Any]:
    """Return what groups of equal workers have published, as JSON shows it; see `Limiter.published`.

    Returns:
        The groups with their numbers of workers, and the rules with what each group enforces by them, in the order of
        the groups.
    """
    groups = []
    enforced = []
    for one in published:
        groups.append({"workers": one.workers, "is_readable": one.is_readable, "same_secret": one.same_secret})
        enforced.append(_by_name(one.text.rules))
    names: dict[RuleName, None] = {}
    for rules in enforced:
        names.update(dict.fromkeys(rules))
    rows = []
    for rule_name in names:
        row = _row(rule_name, [rules.get(rule_name, []) for rules in enforced])
        if row["differs"] or rule_name.label != _CLIENT:  # how clients are determined is no rule
            rows.append(row)
    return {"groups": groups, "rules": rows}


def _row(rule_name: RuleName, by_group: Sequence[list[PublishedRule]]) -> dict[str, Any]:
    """Return a rule, with what each group enforces by it."""
    middleware, label, name = rule_name
    texts = ["; ".join(dict.fromkeys(map(text_of, rules))) for rules in by_group]
    return {
        "middleware": middleware,
        "rule": label,
        "name": name,
        "by_group": texts,
        "differs": any(rules != by_group[0] for rules in by_group),
    }


def _by_name(rules: Sequence[PublishedRule]) -> dict[RuleName, list[PublishedRule]]:
    """Return the rules of some workers by their names, without their order, which one more rule changes."""
    found: dict[RuleName, list[PublishedRule]] = {}
    for rule in rules:
        name = RuleName(rule.middleware, rule.rule, rule.name)
        found.setdefault(name, []).append(replace(rule, order=0))
    return found


def text_of(rule: PublishedRule) -> str:
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
