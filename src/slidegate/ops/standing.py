"""What is said of a client: the words, the reasons and the windows, and by which keys rules count it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ..core import Ban, LimitState
from ..limiter import Override, PublishedRule
from .kinds import ADDRESS, EVERYONE, FUNCTION, beginnings_of
from .rows import listed
from .subjects import Subject

EVERY: Final = "every request"
SEVERAL: Final = "several"
"""In place of the kind of a key, if a network has several clients, which are counted by themselves."""
_SENT: Final = ("header", "cookie", "query", "user")
"""Kinds of keys in place of which a client's address counts if its requests have none."""


class Verdict(StrEnum):
    """What is known of the next request of a client."""

    REFUSED = "refused"
    NOT_REFUSED = "not refused"
    UNKNOWN = "unknown"


class Bans(NamedTuple):
    """The bans in force, as far as they matter for a client.

    Attributes:
        near: Those that may refuse it.
        kinds: The kinds of keys that others have, such as ``address``, ``asn`` or ``header:x-api-key``.
    """

    near: Sequence[Ban]
    kinds: frozenset[str]


@dataclass(frozen=True)
class Reason:
    """Why requests of a client are refused.

    Attributes:
        kind: ``blocklist``, ``ban``, ``block`` or ``limit``.
        by: The list, the maker of the ban, or the rule.
        requests: Which requests.
        apart_from: Which of these are not, because an earlier rule exempts them or ends the list.
        of_some: Whether these are some requests, and not all.
        ban: The ban.
        window: The window of the limit.
    """

    kind: str
    by: str
    requests: str = EVERY
    apart_from: tuple[str, ...] = ()
    of_some: bool = False
    ban: Ban | None = None
    window: LimitState | None = None

    @property
    def is_of_each(self) -> bool:
        """Whether each request of the client is refused."""
        return not self.of_some and not self.apart_from


class Counted(NamedTuple):
    """As what a rule counts requests of a client.

    Attributes:
        key: The key; empty if none is known.
        among: Which of the requests that the rule concerns: `` without header:x-api-key``; empty for all.
    """

    key: str = ""
    among: str = ""


@dataclass
class Window:
    """The window of a client under one limit.

    Attributes:
        rule: The published rule.
        key: The key that is counted.
        state: The state of the window.
        change: The override that is in force; None for none.
    """

    rule: PublishedRule
    key: str
    state: LimitState
    change: Override | None = None


@dataclass
class Standing:
    """What equal workers do with the requests of a client.

    Attributes:
        workers: How many workers these are.
        reasons: Why they refuse requests of it.
        unseen: What may refuse others, or may let these pass.
        other_keys: By which other keys its requests are counted, with the names of the rules.
        windows: The windows that were looked at.
    """

    workers: int
    reasons: list[Reason] = field(default_factory=list)
    unseen: dict[str, None] = field(default_factory=dict)
    other_keys: dict[str, list[str]] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """What is known of the next request."""
        if self.reasons:
            return Verdict.REFUSED
        if self.unseen or self.other_keys:
            return Verdict.UNKNOWN
        return Verdict.NOT_REFUSED

    def leave_out(self, what: str) -> None:
        """Note what was not looked at."""
        self.unseen[what] = None


def counted_as(rule: PublishedRule, subject: Subject) -> Counted:
    """Return as what a published rule counts requests of a client."""
    if rule.key == EVERYONE:
        return Counted(EVERYONE)
    if subject.is_address:
        return _address_counted_as(rule, subject)
    if subject.key.startswith(beginnings_of(rule.key)):
        return Counted(subject.key)
    return Counted()


def _address_counted_as(rule: PublishedRule, subject: Subject) -> Counted:
    if subject.is_several(rule):
        return Counted()
    if rule.key == ADDRESS:
        return Counted(subject.client_key(rule))
    if rule.key.partition(":")[0] in _SENT and "+" not in rule.key:
        return Counted(subject.client_key(rule), f" without {rule.key}")
    return Counted()


def note_other_key(other_keys: dict[str, list[str]], rule: PublishedRule, subject: Subject) -> None:
    """Note that a published rule counts requests of a client by another key."""
    kind = rule.key
    if subject.is_several(rule):
        kind = SEVERAL
    rules = other_keys.setdefault(kind, [])
    if rule.rule not in rules:
        rules.append(rule.rule)


def other_keys_of(rules: Iterable[PublishedRule], subject: Subject) -> dict[str, list[str]]:
    """Return by which other keys published rules count requests of a client, with the names of the rules."""
    found: dict[str, list[str]] = {}
    for rule in rules:
        if not rule.bucket or rule.action != "limit":
            continue
        counted = counted_as(rule, subject)
        if not counted.key or counted.among:
            note_other_key(found, rule, subject)
    return found


def sentences_of(other_keys: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield what was not looked at because rules count by other keys, with the first of many rules."""
    for key, rules in other_keys.items():
        if key == FUNCTION:
            yield f"the keys that functions return for {listed(rules)}"
        elif key == SEVERAL:
            yield f"the clients in it: {_counts(rules)} each by itself"
        else:
            yield f"its {key}, by which {_counts(rules)}"


def _counts(rules: Sequence[str]) -> str:
    if len(rules) == 1:
        return f"{rules[0]} counts"
    return f"{listed(rules)} count"
