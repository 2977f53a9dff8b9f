"""What was looked at before an operator is told something, and the sentence that `statements` makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from .traffic import Ranking, Traffic


class Kind(StrEnum):
    """What a sentence is about."""

    OFF = "off"
    AWAY = "away"
    UNAVAILABLE = "unavailable"
    FLOOD = "flood"
    AT_LIMIT = "at_limit"
    SHARED_ADDRESS = "shared_address"
    EVERYONE = "everyone"
    CROWD = "crowd"
    STOPPED = "stopped"
    QUIET = "quiet"
    NO_REQUESTS = "no_requests"


class Proposal(NamedTuple):
    """Something that an operator may do about it.

    Attributes:
        does: ``ban``, ``unban``, ``raise``, ``look`` at a client, or ``open`` a rule.
        target: The key, the name of the limit, or that of the rule.
        limit: The limit in place of the present one, for an hour; empty for other actions.
    """

    does: str
    target: str
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of the store, as this process sees it.

    Attributes:
        since_us: When it began, in Unix time; 0 if that was not seen.
        on_error: What decides meanwhile: ``local``, ``allow`` or ``deny``.
    """

    since_us: int = 0
    on_error: str = "local"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at: the counts of five minutes, or of as much of them as there was.

    Attributes:
        total: All requests; None if the store did not answer.
        rules: The requests by rule.
        clients: The clients.
        keys: The keys of other kinds, such as the values of a header.
        from_us: When the time of the counts began, in Unix time.
        is_cut: Whether there were requests before that.
        span: The length of that time in words.
        kinds: The kind of key that each rule reads, as workers have published it.
        larger: For a rule, the name of its fullest limit and a larger one; without those that cannot be changed.
        limits: The limits of a rule in words.
        banned: Those of the clients and keys that are banned now.
        outage: The outage of the store, if there is one now.
        off_until: Until when all workers are switched off, in Unix time; 0 if they are not.
        off_by: Who has switched them off.
        is_shared: Whether the store is that of all workers.
        workers: How many workers have published rules within a minute.
        counted_workers: How many workers have written counts within five minutes.
    """

    total: Traffic | None = None
    rules: Mapping[str, Traffic] = field(default_factory=dict)
    clients: Ranking = field(default_factory=lambda: Ranking([], []))
    keys: Ranking = field(default_factory=lambda: Ranking([], []))
    from_us: int = 0
    is_cut: bool = False
    span: str = "5 min"
    kinds: Mapping[str, str] = field(default_factory=dict)
    larger: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    banned: frozenset[str] = frozenset()
    outage: Outage | None = None
    off_until: float = 0
    off_by: str = ""
    is_shared: bool = False
    workers: int = 1
    counted_workers: int = 1


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence, and what can be done.

    Attributes:
        kind: What it is about.
        text: The sentence, with the names of values in braces.
        values: The values: ``offender`` and ``rule`` are names, ``since`` and ``until`` Unix time in seconds.
        actions: What can be done, the first one first.
        notes: What the counts do not contain.
    """

    kind: Kind
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    actions: tuple[Proposal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def offender(self) -> str:
        """The client or key that the sentence names; empty if it names none."""
        return str(self.values.get("offender", ""))

    @property
    def rule(self) -> str:
        """The rule that it names; empty if it names none."""
        return str(self.values.get("rule", ""))
