"""The facts about a key: a row for each published limit, list and ban that its requests can meet.

A row says what one rule does with the requests that it names, as the store has it now::

    refuses        no room, a ban, a block, a blocklist
    has room       the limit admits one more request
    may refuse     no room, but a condition, a wait, a lease, a list or a function may avert it; or a function says what
                   a request costs, which may be more than is left
    would refuse   no room for a rule in shadow
    passes         an allowlist or an exempt rule

Below a rule that ends the list, which exempts, blocks, or has the note `final`, rules do not count these requests.

The rows of a middleware stand in the order in which it decides. They come from what workers have published, from the
store, and from statistics where a worker writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from ..core import AnyLimit, Ban, ConfigurationError, LimitState, Quota, parse_limits
from ..limiter import Override, PublishedRule
from .kinds import FUNCTION, Subject, is_operator, ranges_in
from .published_rules import CALLS, EVERY, where_read
from .traffic import ClientTraffic, limits_in

WindowPlace: TypeAlias = tuple[str, str, AnyLimit]
"""The key, the bucket and the limit of a window."""


class Verdict(StrEnum):
    """What a row means for its requests; see the module."""

    REFUSES = "refuses"
    HAS_ROOM = "has room"
    MAY_REFUSE = "may refuse"
    WOULD_REFUSE = "would refuse"
    PASSES = "passes"


_VERDICTS: Final = {
    "allowlist": Verdict.PASSES,
    "blocklist": Verdict.REFUSES,
    "block": Verdict.REFUSES,
    "exempt": Verdict.PASSES,
}
"""What lists and rules without a limit do."""
_MIDDLEWARE: Final = attrgetter("middleware", "number")


class Fact(NamedTuple):
    """What one rule, list or ban means for a key.

    Attributes:
        rule: The label of the rule or the list; of a ban ``ban of user:42``.
        what: What it is: the limit in force, ``5/1h``; else ``block``, ``exempt``, the kind of the list, or by whom the
            ban is.
        requests: Which requests of the key it concerns.
        key: The key that it counts or bans.
        does: What it does with them now.
        note: On what that depends.
        window: The window of a limit, with how long that refuses the cost of a request.
        ban: The ban.
    """

    rule: str
    what: str
    requests: str
    key: str
    does: Verdict
    note: str = ""
    window: LimitState | None = None
    ban: Ban | None = None

    @property
    def likely_refuses(self) -> bool:
        """Whether it is a `may refuse` of a ban, or of a limit without room.

        Lists and blocks are not meant: whether these refuse does not depend on what the key has done.
        """
        if self.does is not Verdict.MAY_REFUSE:
            return False
        return self.ban is not None or (self.window is not None and self.window.retry_after_us != 0)

    def until_us(self, now_us: int) -> int | None:
        """Return until when it refuses, in Unix time; None if that is unknown."""
        if self.ban is not None:
            return self.ban.until_us
        if self.window is None or self.window.retry_after_us is None:
            return None
        return now_us + self.window.retry_after_us

    def perhaps(self, note: str) -> Fact:
        """Return the row with a note on what it depends; an empty one changes nothing.

        A row with room stays as it is. With a note, `refuses` becomes `may refuse`; other verdicts stay.
        """
        does = self.does
        if does is Verdict.HAS_ROOM:
            return self
        if note and does is Verdict.REFUSES:
            does = Verdict.MAY_REFUSE
        return self._replace(does=does, note=joined(self.note, note))


def joined(*texts: str) -> str:
    """Return the texts that are not empty, in one line."""
    return ", ".join(filter(None, texts))


@dataclass
class FactsOfRules:
    """Makes the rows of a key from published rules.

    Whoever uses it reads the windows that `places_of` names for all rules, sets them, takes all rows, and then knows
    what was left out.

    Attributes:
        bans: The bans that may refuse it, and those of all operators.
        operators: The operators of its address, as ``asn:64496``; empty if this process does not know them.
        traffic: What statistics have counted of each client and key, with the limits that functions returned for it.
        changes: The changes of limits in force, by name.
        windows: The windows that `places_of` names, which the caller reads before it asks for rows.
        left_out: What was not read, and of which rules. `rows_of` fills it: it is complete after the last row.
        is_open: Whether without that it is not known if the key is refused; complete at the same time.
    """

    subject: Subject
    bans: Sequence[Ban]
    operators: Collection[str]
    traffic: Mapping[str, ClientTraffic]
    changes: Mapping[str, Override]
    windows: Mapping[WindowPlace, LimitState] = field(default_factory=dict)
    left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    is_open: bool = False

    def leave_out(self, text: str, whose: str, *, is_open: bool = True) -> None:
        """Note what was not read, of which rule, and whether it might refuse the key."""
        self.left_out.setdefault(text, {})[whose] = None
        self.is_open |= is_open

    def change_of(self, rule: PublishedRule) -> str:
        """Return the change in force of the limit of a rule; empty without one."""
        change = self.changes.get(rule.name)
        if change is not None and rule.named_limit().takes(change.limit):
            return change.limit
        return ""

    def places_of(self, rule: PublishedRule) -> list[WindowPlace]:
        """Return the windows in which a rule counts the key; none for another key or unknown limits."""
        key = self.subject.counted_by(rule)
        if not rule.bucket or not key:
            return []
        if not rule.by_function:
            with suppress(ConfigurationError):  # the time zone of a quota is not known on this host
                return [(key, rule.bucket, rule.counted_limit(self.change_of(rule)))]
            return []
        # Requests without the rule's header count by their address, but what statistics have seen of the address may be
        # the limit of a request with that header.
        if key not in self.traffic or self.subject.among(rule):
            return []
        amounts = self.traffic[key].amounts.get(rule.rule, "")
        # Without a slash it is that of permits.
        return [(key, rule.bucket, _limit_in(text)) for text in limits_in(amounts) if "/" in text]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows_of(self, rules: Sequence[PublishedRule]) -> Iterator[Fact]:
        """Yield the rows of equal workers, those of each middleware in the order in which it decides."""
        middlewares = dict.fromkeys(map(_MIDDLEWARE, rules)) or {("", 0): None}  # without rules its bans are known
        for name, number in middlewares:
            where = ""
            if len(middlewares.keys() - {(CALLS, 0)}) > 1:  # there are several middlewares
                where = f" of the middleware {name or 'without a name'}"
            for row in self._of_middleware([rule for rule in rules if _MIDDLEWARE(rule) == (name, number)]):
                if name != CALLS:
                    yield row._replace(requests=row.requests + where)
                elif not is_operator(row.key):  # whose bans hold in middlewares alone
                    yield row._replace(requests=name)

    def _of_middleware(self, rules: Sequence[PublishedRule]) -> Iterator[Fact]:
        unless = ""  # an allowlist may hold the address, or a part of the network
        for rule in sorted(rules, key=attrgetter("action")):  # "allowlist" before "blocklist"
            for row in self._of_list(rule):
                yield row.perhaps(unless)
                # A client on an allowlist meets no ban and no rule. A user or an API key may come from elsewhere, too.
                if row.does is Verdict.PASSES and self.subject.addresses:
                    unless = f"unless {rule.rule} lists its address"
                    if not row.note:  # nothing else decides about its requests
                        return
        for row in (*self._of_bans(rules), *self._of_rules(rules)):
            yield row.perhaps(unless)

    def _of_list(self, rule: PublishedRule) -> Iterator[Fact]:
        """Yield the row of a list that contains the key, or may contain it or a part of it."""
        if not rule.size:  # it is no list, or an empty one
            return
        share = self.subject.share_in(ranges_in(rule.ranges))
        # A later version may have lists of another kind.
        row = Fact(rule.rule, rule.action, EVERY, self.subject.key, _VERDICTS.get(rule.action, Verdict.MAY_REFUSE))
        if share == "whole":
            yield row
        elif share == "part" or not rule.ranges:  # of a long list none are published
            yield row.perhaps("if it lists its address")

    def _of_bans(self, rules: Sequence[PublishedRule]) -> Iterator[Fact]:
        """Yield a row for each ban: of every request, or of those for which a rule reads the banned key."""
        read_always = {*self.operators}
        if self.subject.addresses:
            read_always.add(self.subject.key)
        for ban in self.bans:
            row = Fact(f"ban of {ban.key}", f"by {ban.by}", EVERY, ban.key, Verdict.REFUSES, ban.reason, ban=ban)
            share = self.subject.share_banned(ban)
            requests = where_read(rule for rule in rules if self.subject.counted_by(rule) == ban.key)
            # From the widest to the narrowest, as one ban can be several: the network of an address may be the key of a
            # rule as well, and is refused on every request all the same.
            if ban.key in read_always or share == "whole":
                yield row
            elif share == "part":
                yield row.perhaps("for a part of it")
            elif requests:
                yield row._replace(requests=requests)
            elif is_operator(ban.key) and not self.operators and self.subject.addresses:
                self.leave_out("whether a banned operator has its address", ban.key)

    def _of_rules(self, rules: Sequence[PublishedRule]) -> Iterator[Fact]:
        """Yield the rows of rules, one for each of their limits; none for a rule that no request of its own reaches.

        That is known of a rule below one that ends the list for every request, or blocks those in the same words. An
        exempt or final rule in the same words leaves some to the rules below, as it matches ``/a``, and a limit ``/a/``
        as well. Rules of other words are not compared: ``/api/x`` has rows that refuse below an exempt
        ``/api/{rest:path}``.
        """
        ending = list[PublishedRule]()  # the rules that end the list, so far
        for rule in rules:
            above = [other for other in ending if other.order < rule.order and other.requests in ("", rule.requests)]
            if rule.at_endpoint:  # whatever other rules let pass
                above = []
            # Whether each leaves some requests to this rule.
            if all(other.conditional or (other.requests and other.action != "block") for other in above):
                unless = dict.fromkeys(f"unless {other.rule} ends the list" for other in above)
                yield from self._of_rule(rule, " and ".join(unless))
            if rule.final:  # as one that exempts or blocks is, too
                ending.append(rule)

    def _of_rule(self, rule: PublishedRule, depends: str) -> Iterator[Fact]:
        """Yield the rows of a rule, given on what it depends besides its own condition."""
        if rule.conditional:
            depends = joined("if its condition holds", depends)
        if rule.action in ("block", "exempt"):
            row = Fact(rule.rule, rule.action, rule.requests or EVERY, "", _VERDICTS[rule.action])
            yield row.perhaps(depends)
        if rule.bucket:
            yield from self._of_limit(rule, depends)

    def _of_limit(self, rule: PublishedRule, depends: str) -> Iterator[Fact]:
        """Yield a row for each window in which a limit counts the key, given on what a refusal depends."""
        key = self.subject.counted_by(rule)
        among = self.subject.among(rule)
        windows = [_as_met(rule, self.windows[place]) for place in self.places_of(rule)]
        if key and not windows:
            unknown = "limits in a time zone that is not known here"
            if rule.by_function:
                unknown = "limits that functions return"
            self.leave_out(unknown, rule.rule, is_open=not rule.shadow)  # a rule in shadow refuses nothing
        is_elsewhere = among or not key
        # A function may return any key; that it returns an address is known once something was spent under it.
        if rule.key == FUNCTION and self.subject.addresses:
            windows = [window for window in windows if window.used]
            is_elsewhere = not windows
        if is_elsewhere:
            self.leave_out(self._other_key(rule), rule.rule, is_open=False)  # which is explained by itself
        for window in windows:
            does, hedge = _decided(rule, window, depends)
            notes = [hedge]
            if rule.cost > window.limit.amount and not rule.cost_by_function:
                notes.append("costs more than the limit")
            if rule.final:
                notes.append("final")
            if self.change_of(rule):
                notes.append(f"{rule.limit} in code")
            if rule.by_function:
                notes.append("by a function, as statistics have seen it")
            yield Fact(
                rule.rule, str(window.limit), (rule.requests or EVERY) + among, key, does, joined(*notes), window
            )

    def _other_key(self, rule: PublishedRule) -> str:
        """Return by which other key a rule counts requests of the key."""
        if self.subject.is_several(rule):
            return "each client in it"
        if rule.key == FUNCTION:
            return "keys that functions return"
        return f"its {rule.key}"


def _limit_in(text: str) -> AnyLimit:
    """Return a limit that statistics have seen: ``5/1m``, or ``9/month from 1 in UTC``."""
    limit, _, calendar = text.partition(" from ")
    if not calendar:
        return parse_limits(text)[0]
    starts, _, zone = calendar.rpartition(" in ")
    return Quota(limit, zone=zone, starts=starts)


def _as_met(rule: PublishedRule, window: LimitState) -> LimitState:
    """Return the window of a rule as a request of the rule's cost meets it."""
    name = rule.name
    if rule.by_function:  # whose names are those of its fallback limits
        name = rule.rule
    wait_us = window.retry_after_us
    # The window was read for one unit, for which also a cost of 0 needs room.
    if not rule.cost_by_function and rule.cost > max(window.remaining, 1):
        wait_us = None
        # When enough units have left is known if all of them leave together, and that makes room for the cost.
        if window.more_after_us == window.reset_after_us and rule.cost <= window.limit.amount:
            wait_us = window.more_after_us
    return window._replace(name=name, label=rule.rule, shadow=rule.shadow, retry_after_us=wait_us)


def _decided(rule: PublishedRule, window: LimitState, depends: str) -> tuple[Verdict, str]:
    """Return what a limit does with one more request, and on what that depends; empty for nothing.

    Args:
        depends: What decides if its rule counts the request.
    """
    # A cost that a function returns may be more than is left of a window in use; a rule in shadow refuses nothing.
    if window.retry_after_us == 0 and (rule.shadow or not rule.cost_by_function or not window.used):
        return Verdict.HAS_ROOM, ""
    hedge = _hedge_of(rule, window, depends)
    if rule.shadow:
        return Verdict.WOULD_REFUSE, hedge
    if hedge:
        return Verdict.MAY_REFUSE, hedge
    return Verdict.REFUSES, ""


def _hedge_of(rule: PublishedRule, window: LimitState, depends: str) -> str:
    """Return on what a refusal by a limit depends: the first of what can avert it; empty for nothing."""
    if rule.cost_by_function:
        return "a function says what a request costs"
    if depends:
        return depends
    if rule.cost > window.limit.amount:  # for which no wait makes room
        return ""
    if rule.wait_us and max(window.retry_after_us or 0, window.more_after_us) <= rule.wait_us:
        return f"requests may wait, up to {rule.wait_us / 1_000_000:g} s"
    if rule.leased:
        return "workers may have leased units for a second"
    return ""
