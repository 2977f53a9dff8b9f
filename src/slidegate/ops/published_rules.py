"""The rules that workers have published, where workers differ, and the limits of this process.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..limiter import Publication, PublishedRule

BY_FUNCTION: Final = "by a function"
_CLIENT: Final = "client"
_OWN_PREFIXES: Final = (32, 64)


class RuleRow(NamedTuple):
    """A rule, as the first of several groups of equal workers enforces it.

    Attributes:
        middleware: The name of its middleware.
        name: The name of its limit; empty without one.
        does: What it does, in words.
        differing: What other workers do in its place.
    """

    middleware: str
    rule: str
    name: str
    does: str
    differing: list[str]


def rule_rows(published: Sequence[Publication]) -> list[RuleRow]:
    """Return the rules of all workers: what the first of equal workers enforce, and where others differ."""
    readable = [publication for publication in published if publication.is_readable]
    groups = [_by_name(publication.rules) for publication in readable]
    rows = []
    for name in dict.fromkeys(name for group in groups for name in group):
        texts = [group.get(name, "nothing") for group in groups]
        differing = []
        for publication, text in zip(readable, texts, strict=True):
            if text != texts[0]:
                differing.append(f"{_workers(publication.workers)}: {text}")
        row = RuleRow(*name, texts[0], differing)
        if differing or row.rule != _CLIENT:  # how clients are determined is no rule
            rows.append(row)
    return sorted(rows, key=lambda row: not row.differing)


def _by_name(rules: Iterable[PublishedRule]) -> dict[tuple[str, str, str], str]:
    """Return what some workers enforce by each rule, in words."""
    texts: dict[tuple[str, str, str], dict[str, None]] = {}
    for rule in rules:
        texts.setdefault((rule.middleware, rule.rule, rule.name), {})[text_of(rule)] = None
    return {name: "; ".join(of_name) for name, of_name in texts.items()}


def _workers(number: int) -> str:
    if number == 1:
        return "1 worker"
    return f"{number} workers"


def unread_of(published: Iterable[Publication]) -> list[str]:
    """Return what could not be read, or counts apart."""
    lines = []
    for publication in published:
        if not publication.is_readable:
            lines.append(f"the rules of {_workers(publication.workers)} could not be read")
        if not publication.same_secret:
            lines.append(f"{_workers(publication.workers)} digest keys with another secret")
    return lines


def text_of(rule: PublishedRule) -> str:
    """Return what a published rule does, in words: ``5/1m by address, POST /login``."""
    words = _what_of(rule)
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


def _what_of(rule: PublishedRule) -> str:
    if rule.by_function:
        return "limits of a function"
    if rule.zone:
        return f"{rule.limit} from {rule.starts} in {rule.zone}"
    return rule.limit or rule.action


# -- the limits of this process ----------------------------------------------------------------------------------------


class LimitRow(NamedTuple):
    """A limit of this process.

    Attributes:
        name: Its name in header fields.
        rule: The label of its rule.
        shadow: Whether the rule reports only.
        changeable: Whether it can be changed: of equal names, one can.
        limit: The limit in force, in words.
        configured: The limit in code.
        amount: The amount in force; None if a function returns it.
    """

    name: str
    rule: str
    shadow: bool
    changeable: bool
    limit: str
    configured: str
    amount: int | None


def limit_rows(limits: Iterable[Any]) -> list[LimitRow]:
    """Return the limits of this process."""
    changeable = changeable_limits(limits)
    rows = []
    for limit in limits:
        text, configured, amount = BY_FUNCTION, BY_FUNCTION, None
        if limit.changeable:
            text, configured, amount = str(limit.limit), str(limit.configured), limit.limit.amount
        is_changeable = changeable.get(limit.name) is limit
        rows.append(LimitRow(limit.name, limit.rule, limit.shadow, is_changeable, text, configured, amount))
    return rows


def changeable_limits(limits: Iterable[Any]) -> dict[str, Any]:
    """Return the limits that can be changed, by name: of equal names the last one, which workers publish."""
    return {limit.name: limit for limit in limits if limit.changeable}
