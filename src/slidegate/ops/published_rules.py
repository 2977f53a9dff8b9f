"""The rules that workers have published, where workers differ, and the limits of this process.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..limiter import Publication, PublishedRule

BY_FUNCTION: Final = "by a function"
_CLIENT: Final = "client"
_OF_ROUTE: Final = "per-route "
"""How the labels of `default_limits` begin."""
_OWN_PREFIXES: Final = (32, 64)


class RuleRow(NamedTuple):
    """A rule, as some workers enforce it.

    Attributes:
        middleware: The name of its middleware.
        rule: Its label.
        name: The name of its limit; empty without one.
        does: What it does, in words.
        workers: How many workers have it; empty if all have.
    """

    middleware: str
    rule: str
    name: str
    does: str
    workers: str


def rule_rows(published: Sequence[Publication]) -> list[RuleRow]:
    """Return the rules of all workers, those first that only some of them have."""
    having: dict[tuple[str, str, str, str], int] = {}
    for publication in published:
        # Limits that the text does not tell apart are one row.
        described = {(rule.middleware, rule.rule, rule.name, text_of(rule)): None for rule in publication.rules}
        for row in described:
            having[row] = having.get(row, 0) + publication.workers
    workers = sum(publication.workers for publication in published if publication.is_readable)
    met = met_by(published)
    rows = [RuleRow(*row, some_workers(number, met.get(row[1], workers))) for row, number in having.items()]
    differing = sorted(row for row in rows if row.workers)
    # How clients are determined is no rule.
    return differing + [row for row in rows if not row.workers and row.rule != _CLIENT]


def some_workers(number: int, of: int) -> str:
    """Return which workers have something, in words; empty for all."""
    if number == of:
        return ""
    return f"in {number} of {of} workers"


def met_by(published: Sequence[Publication]) -> Counter[str]:
    """Return how many workers know each limit of a route or an endpoint: they know it from its first request on."""
    met = Counter[str]()
    for publication in published:
        labels = {rule.rule for rule in publication.rules if rule.at_endpoint or rule.rule.startswith(_OF_ROUTE)}
        met.update(dict.fromkeys(labels, publication.workers))
    return met


def text_of(rule: PublishedRule) -> str:
    """Return what a published rule does, in words: ``5/1m by address, POST /login``."""
    words = rule.limit or rule.action
    if rule.by_function:
        words = "limits of a function"
    elif rule.zone:
        words += f" from {rule.starts} in {rule.zone}"
    if rule.key:
        words += f" by {rule.key}"
    if (rule.ipv4_prefix, rule.ipv6_prefix) != _OWN_PREFIXES:
        words += f" /{rule.ipv4_prefix} and /{rule.ipv6_prefix}"
    if rule.size:
        words += f", ranges: {rule.size:,}"
    if rule.requests and rule.requests not in rule.rule:
        words += f", {rule.requests}"
    if rule.conditional:
        words += ", if a condition holds"
    if rule.shadow:
        words += ", in shadow"
    return words


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


def limit_rows(limits: Sequence[Any]) -> list[LimitRow]:
    """Return the rows of the limits of this process."""
    by_name = changeable_limits(limits)
    rows = []
    for limit in limits:
        row = LimitRow(
            limit.name,
            limit.rule,
            limit.shadow,
            by_name.get(limit.name) is limit,
            str(limit.limit),
            str(limit.configured),
            limit.limit.amount,
        )
        if not limit.changeable:
            row = row._replace(limit=BY_FUNCTION, configured=BY_FUNCTION, amount=None)
        rows.append(row)
    return rows


def changeable_limits(limits: Iterable[Any]) -> dict[str, Any]:
    """Return the limits that can be changed, by name: of equal names the last one, which workers publish."""
    return {limit.name: limit for limit in limits if limit.changeable}
