"""The facts about a key: its last refusals, and a row for each published limit, list and ban that it can meet.

A row says what one rule does with the requests that it names, as the store has it now::

    refuses        no room, a ban, a block, a blocklist
    has room       the limit admits one more request
    may refuse     no room, but a condition, a wait, a lease or a function decides
    would refuse   the same of a rule in shadow
    passes         an allowlist, or an exempt rule: what stands below it is not reached by these requests
    not reached    a row above lets all its requests pass
    not read       a function returns its limits, and statistics have not seen them

The rows come from what workers have published, from the store, and from statistics where a worker writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from ..core import AnyLimit, Ban, LimitState, Quota, parse_limits
from ..limiter import PublishedRule
from .kinds import FUNCTION, Subject, is_operator, ranges_in
from .published_rules import BY_FUNCTION
from .rows import listed

EVERY: Final = "every request"
WindowPlace: TypeAlias = tuple[str, str, AnyLimit]
"""The key, the bucket and the limit of a window."""


class Verdict(StrEnum):
    """What a row means for its requests; see the module."""

    REFUSES = "refuses"
    HAS_ROOM = "has room"
    MAY_REFUSE = "may refuse"
    WOULD_REFUSE = "would refuse"
    PASSES = "passes"
    NOT_REACHED = "not reached"
    NOT_READ = "not read"


_WITHOUT_LIMIT: Final = {"block": Verdict.REFUSES, "exempt": Verdict.PASSES}
"""The verdicts of rules without a limit."""


class Fact(NamedTuple):
    """What one rule, list or ban means for a key.

    Attributes:
        by: The rule, the list, or the author of the ban.
        what: What it is: the limit in force, ``5/1h``; else ``ban``, ``block``, ``exempt`` or the kind of the list.
        requests: Which requests of the key it concerns.
        key: The key that it counts or bans.
        does: What it does with them now.
        note: On what that depends.
        window: The window of a limit.
    """

    by: str
    what: str
    requests: str
    key: str
    does: Verdict
    note: str = ""
    window: LimitState | None = None
    ban: Ban | None = None

    @property
    def may_refuse(self) -> bool:
        """Whether it is a ban, or a limit without room, to which something else must be added for a refusal."""
        if self.does is not Verdict.MAY_REFUSE:
            return False
        return self.ban is not None or (self.window is not None and not self.window.remaining)

    def until_us(self, now_us: int) -> int | None:
        """Return until when it refuses, in Unix time; None if that is unknown."""
        if self.ban is not None:
            return self.ban.until_us
        if self.window is None or self.window.retry_after_us is None:
            return None
        return now_us + (self.window.retry_after_us or self.window.more_after_us)  # 0: room for one, not for its cost


def joined(*texts: str) -> str:
    """Return the texts that are not empty, in one line."""
    return ", ".join(filter(None, texts))


@dataclass
class FactsOfRules:
    """Makes the rows of a key from published rules, after the caller has set the windows that `places_of` names.

    Attributes:
        bans: The bans that may refuse it, and those of all operators.
        operators: The operators of its address, as ``asn:64496``; empty if this process does not know them.
        amounts: The limits that statistics have seen in decisions, by key and rule.
        changed: The limits that operators have changed.
    """

    subject: Subject
    bans: Sequence[Ban] = ()
    operators: Collection[str] = ()
    amounts: dict[tuple[str, str], str] = field(default_factory=dict)
    changed: dict[PublishedRule, str] = field(default_factory=dict)
    windows: Mapping[WindowPlace, LimitState] = field(default_factory=dict)
    _left_out: dict[str, dict[str, None]] = field(default_factory=dict)

    def leave_out(self, text: str, whose: str) -> None:
        """Note what could not be read, and of which rule."""
        self._left_out.setdefault(text, {})[whose] = None

    def left_out(self) -> list[str]:
        """Return what could not be read, in words."""
        return [f"{text} ({listed([*whose])})" for text, whose in self._left_out.items()]

    def places_of(self, rule: PublishedRule) -> list[WindowPlace]:
        """Return the windows in which a rule counts the key; none if by another one, or if they are not known."""
        key, _ = self.subject.counted_by(rule)
        if rule.action != "limit" or not rule.bucket or not key:
            return []
        if not rule.by_function:
            return [(key, rule.bucket, rule.counted_limit(self.changed.get(rule, "")))]
        limit_texts = self.amounts.get((key, rule.rule), "")
        return [(key, rule.bucket, _limit_in(text)) for text in limit_texts.split("; ") if text]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows_of(self, rules: Sequence[PublishedRule]) -> Iterator[Fact]:
        """Yield the rows of equal workers, those of each middleware in the order in which it decides."""
        names = dict.fromkeys(rule.middleware for rule in rules) or [""]  # without rules its bans are known
        for name in names:
            where = ""
            if len(names) > 1:
                where = f" of the middleware {name or 'without a name'}"
            yield from self._of_middleware([rule for rule in rules if rule.middleware == name], where)

    def _of_middleware(self, rules: Sequence[PublishedRule], where: str) -> Iterator[Fact]:
        # Step 1: the allowlist, the blocklist, bans.
        allowed = [*self._of_list("allowlist", Verdict.PASSES, rules, where)]
        yield from allowed
        for row in [*self._of_list("blocklist", Verdict.REFUSES, rules, where), *self._of_bans(rules, where)]:
            yield _below(allowed, row)
        # Step 2: the rules, until one ends the list.
        passing = [*allowed]
        for rule in rules:
            above = passing
            if rule.at_endpoint:  # whatever other rules let pass
                above = allowed
            requests = (rule.requests or EVERY) + where
            for row in self._of_rule(rule, requests):
                yield _below(above, row)
            if rule.action == "exempt" or rule.final:
                passing.append(Fact(rule.rule, rule.action, requests, "", Verdict.PASSES, _condition_of(rule)))

    def _of_list(self, kind: str, does: Verdict, rules: Sequence[PublishedRule], where: str) -> Iterator[Fact]:
        """Yield the row of a list that contains the key, or may contain it or a part of it."""
        parts = [rule for rule in rules if rule.action == kind]
        share = self.subject.share_in(ranges_in(" ".join(rule.ranges for rule in parts)))
        # Of a list with too many ranges none are published.
        if not parts or (share == "none" and all(rule.ranges for rule in parts)):
            return
        row = Fact(parts[0].rule, kind, EVERY + where, self.subject.key, does)
        if share != "whole":
            row = _perhaps(row, "if it lists its address")
        yield row

    def _of_bans(self, rules: Sequence[PublishedRule], where: str) -> Iterator[Fact]:
        """Yield a row for each ban: of every request, or of those for which a rule reads the banned key."""
        # A middleware reads the key of its client, and its policies read theirs, on every request.
        read_always = {self.subject.counted_by(rule)[0] for rule in rules if rule.action in ("client", "ban")}
        if self.subject.addresses is not None:
            read_always.add(self.subject.key)
        read_always.update(self.operators)
        for ban in self.bans:
            row = Fact(ban.by, "ban", EVERY + where, ban.key, Verdict.REFUSES, ban.reason, ban=ban)
            share = self.subject.share_banned(ban)
            if ban.key in read_always or share == "whole":
                yield row
                continue
            if is_operator(ban.key) and not self.operators:
                self.leave_out("whether a banned operator has its address", ban.key)
            if share == "part":
                yield _perhaps(row, "for a part of it")
            yield from self._where_read(row, rules, where)

    def _where_read(self, row: Fact, rules: Sequence[PublishedRule], where: str) -> Iterator[Fact]:
        """Yield the row of a ban for the requests of each rule that reads its key."""
        for rule in rules:
            if not rule.bucket or rule.shadow:
                continue
            key, among = self.subject.counted_by(rule)
            depends = _condition_of(rule)
            if rule.key == FUNCTION:
                key, depends = self.subject.key, joined(depends, "if its function returns the key")
            if key != row.key:
                continue
            yield _perhaps(row._replace(requests=(rule.requests or EVERY) + among + where), depends)

    def _of_rule(self, rule: PublishedRule, requests: str) -> Iterator[Fact]:
        """Yield the rows of a rule: one for each of its limits."""
        if rule.action in _WITHOUT_LIMIT:
            row = Fact(rule.rule, rule.action, requests, "", _WITHOUT_LIMIT[rule.action])
            yield _perhaps(row, _condition_of(rule))
        if rule.action != "limit" or not rule.bucket:
            return
        key, among = self.subject.counted_by(rule)
        if not key or among:
            self.leave_out(self._other_key(rule), rule.rule)
        if not key:
            return
        places = self.places_of(rule)
        if not places:
            self.leave_out("limits that functions return", rule.rule)
            yield Fact(rule.rule, BY_FUNCTION, requests + among, key, Verdict.NOT_READ)
        for place in places:
            window = self.windows[place]
            does, note = _verdict_of(rule, window)
            if rule in self.changed:
                note = joined(note, f"{rule.limit} in code")
            if rule.by_function:
                note = joined(note, "by a function, as statistics have seen it")
            yield Fact(rule.rule, str(window.limit), requests + among, key, does, note, window)

    def _other_key(self, rule: PublishedRule) -> str:
        """Return by which other key a rule counts requests of the key."""
        if self.subject.is_several(rule):
            return "each client in it"
        if rule.key == FUNCTION:
            return "keys that functions return"
        return f"its {rule.key}"


def _limit_in(text: str) -> AnyLimit:
    """Return a limit that statistics have seen: ``5/1m``, or ``month: 9/month from 1 in UTC``."""
    limit, _, calendar = text.partition(" from ")
    if not calendar:
        return parse_limits(text)[0]
    starts, _, zone = calendar.rpartition(" in ")
    return Quota(limit.rpartition(": ")[2], zone=zone, starts=starts)


def _condition_of(rule: PublishedRule) -> str:
    if rule.conditional:
        return "if its condition holds"
    return ""


def _perhaps(row: Fact, note: str) -> Fact:
    """Return a row with a note on what it depends; a refusal is a possible one then. An empty note changes nothing."""
    if note and row.does is Verdict.REFUSES:
        row = row._replace(does=Verdict.MAY_REFUSE)
    return row._replace(note=joined(row.note, note))


def _verdict_of(rule: PublishedRule, window: LimitState) -> tuple[Verdict, str]:
    """Return what a limit does with one more request, and on what that depends."""
    has_room = window.remaining >= max(rule.cost, 1)
    if has_room and not (rule.cost_by_function and window.used):
        return Verdict.HAS_ROOM, ""
    if rule.shadow:
        return Verdict.WOULD_REFUSE, ""
    if rule.cost_by_function:
        return Verdict.MAY_REFUSE, "a function says what a request costs"
    if rule.conditional:
        return Verdict.MAY_REFUSE, _condition_of(rule)
    wait_us = window.retry_after_us
    if rule.wait_us and (wait_us is None or wait_us <= rule.wait_us):
        return Verdict.MAY_REFUSE, f"requests may wait, up to {rule.wait_us / 1_000_000:g} s"
    if rule.leased:
        return Verdict.MAY_REFUSE, "workers may have leased units for a second"
    return Verdict.REFUSES, ""


def _below(above: Sequence[Fact], row: Fact) -> Fact:
    """Return a row with what the rows above it let pass."""
    unless: list[str] = []
    for higher in above:
        if not _may_meet(higher.requests, row.requests):
            continue
        is_certain = not higher.note  # its note says on what it depends
        if is_certain and (higher.requests.startswith(EVERY) or higher.requests == row.requests):
            return row._replace(does=Verdict.NOT_REACHED, note=f"{higher.by} passes above")
        unless.append(higher.by)
    if not unless or row.does is not Verdict.REFUSES:
        return row
    return row._replace(note=joined(row.note, f"unless {' or '.join(unless)} lets it pass"))


def _may_meet(requests: str, other: str) -> bool:
    """Return whether a request may be among both of two kinds, as published rules name them."""
    paths, other_paths = [{word for word in text.split() if word.startswith("/")} for text in (requests, other)]
    return "{" in requests + other or not paths or not other_paths or not paths.isdisjoint(other_paths)
