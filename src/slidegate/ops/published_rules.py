"""The rules that workers have published, where workers differ, and the limits of this process.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..limiter import Publication, PublishedRule
from .rows import named

Row = TypeVar("Row", bound=tuple[Any, ...])

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
    workers: str = ""


def rule_rows(published: Sequence[Publication]) -> list[RuleRow]:
    """Return the rules of all workers, those first that only some of them have."""
    workers = sum(publication.workers for publication in published if publication.is_readable)
    rows = [row._replace(workers=some) for row, some in of_workers(published, workers, _rows_in, "rule")]
    differing = sorted(row for row in rows if row.workers)
    # How clients are determined is no rule.
    return differing + [row for row in rows if not row.workers and row.rule != _CLIENT]


def _rows_in(rules: Iterable[PublishedRule]) -> Iterator[RuleRow]:
    for rule in rules:
        yield RuleRow(rule.middleware, rule.rule, rule.name, text_of(rule))


def of_workers(
    published: Iterable[Publication], workers: int, rows_of: Callable[[Any], Iterable[Row]], label: str
) -> list[tuple[Row, str]]:
    """Return what workers have, each once, and which of them have it, in words; empty for all.

    Args:
        workers: How many workers there are.
        rows_of: Returns what a worker with some rules has.
        label: In which field a row has the label of its rule.
    """
    having = Counter[Row]()
    # A limit of a route or an endpoint is known from its first request on: only these workers can have it.
    met = Counter[str]()
    for publication in published:
        having.update(dict.fromkeys(rows_of(publication.rules), publication.workers))
        late = {rule.rule for rule in publication.rules if rule.at_endpoint or rule.rule.startswith(_OF_ROUTE)}
        met.update(dict.fromkeys(late, publication.workers))
    rows = []
    for row, number in having.items():
        of = met.get(getattr(row, label), workers)
        some = ""
        if number != of:
            some = f"in {number} of {of} workers"
        rows.append((row, some))
    return rows


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


def limit_rows(limits: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of the limits of this process, as JSON shows them.

    A row has the name of the limit in header fields, the label of its rule, whether that reports only, the limit in
    force and that in code, in words, and the amount in force; None if a function returns it. Of equal names, one limit
    can be changed.
    """
    by_name = changeable_limits(limits)
    rows = []
    for limit in limits:
        row = {**named(limit, "name", "rule", "shadow"), "changeable": by_name.get(limit.name) is limit}
        if limit.changeable:
            row |= {"limit": str(limit.limit), "configured": str(limit.configured), "amount": limit.limit.amount}
        else:
            row |= {"limit": BY_FUNCTION, "configured": BY_FUNCTION, "amount": None}
        rows.append(row)
    return rows


def changeable_limits(limits: Iterable[Any]) -> dict[str, Any]:
    """Return the limits that can be changed, by name: of equal names the last one, which workers publish."""
    return {limit.name: limit for limit in limits if limit.changeable}
