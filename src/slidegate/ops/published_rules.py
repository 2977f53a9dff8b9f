"""The rules that workers have published, and where workers differ.

Workers differ during a rolling upgrade, or if two services share a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..limiter import Publication, PublishedRule

_CLIENT: Final = "client"
_OWN_PREFIXES: Final = (32, 64)


class RuleRow(NamedTuple):
    """A rule, as the first of several groups of equal workers enforces it.

    Attributes:
        middleware: The name of its middleware.
        rule: Its label.
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
    readable = [one for one in published if one.is_readable]
    groups = [_by_name(one.text.rules) for one in readable]
    rows = []
    for name in dict.fromkeys(name for group in groups for name in group):
        texts = [group.get(name, "") for group in groups]
        differing = []
        for one, text in zip(readable, texts, strict=True):
            if text != texts[0]:
                differing.append(f"{_workers(one.workers)}: {text or 'nothing'}")
        row = RuleRow(*name, texts[0] or "nothing", differing)
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
    for one in published:
        if not one.is_readable:
            lines.append(f"the rules of {_workers(one.workers)} could not be read")
        if not one.same_secret:
            lines.append(f"{_workers(one.workers)} digest keys with another secret")
    return lines


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
