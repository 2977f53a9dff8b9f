"""What equal workers do with the requests of a client: what refuses it, and what cannot be known of that.

A reason is certain: each request that it names is refused. What may refuse others, or may let these pass, is named as
not looked at, and nothing is said to be not refused then::

    list, ban, block, limit without room    a reason
    the same under a condition              not looked at
    a limit with room                       nothing
    a rule that cannot be evaluated         not looked at

The rules of a middleware are walked in order, as for a request: what is exempt ends the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .. import Networks
from ..limiter import PublishedRule
from .kinds import ADDRESS, shown
from .standing import EVERY, Bans, Reason, Standing, Window, counted_as, note_other_key
from .subjects import Subject, networks_of


class _List(NamedTuple):
    """A list of a middleware.

    Attributes:
        kind: ``allowlist`` or ``blocklist``.
        networks: Its networks, as far as they are published.
        unpublished: How many ranges it has, if these are not published.
    """

    kind: str
    networks: Networks
    unpublished: int


class Walk:
    """Walks the rules of one middleware for a client.

    Args:
        standing: What is found.
        subject: The client.
        bans: The bans that may refuse it.
        windows: Its windows, by the published rule.
        where: What is said of the requests of this middleware, if there are several; else empty.
    """

    def __init__(
        self, standing: Standing, subject: Subject, bans: Bans, windows: Mapping[PublishedRule, Window], where: str
    ) -> None:
        self._standing = standing
        self._subject = subject
        self._bans = bans
        self._windows = windows
        self._where = where
        # The requests that earlier rules let pass, and the rules that may let some pass.
        self._passed: list[str] = []
        self._perhaps: list[str] = []
        self._is_over = False
        self._may_be_allowed = False

    def over(self, rules: Sequence[PublishedRule]) -> None:
        """Walk the published rules of the middleware."""
        allowlist = _list_in(rules, "allowlist")
        if self._subject.part_in(allowlist.networks).is_whole:
            return
        unknown = self._unknown_of(allowlist)
        if unknown:  # so nothing refuses it for certain
            self._may_be_allowed = True
            self._standing.leave_out(unknown)
        self._look_at_blocklist(rules)
        self._look_at_bans(rules)
        self._note_other_bans(rules)
        for rule in sorted(rules, key=_order):
            if rule.action in ("limit", "block", "exempt"):
                self._look_at(rule)

    # -- lists and bans ------------------------------------------------------------------------------------------------

    def _look_at_blocklist(self, rules: Sequence[PublishedRule]) -> None:
        blocklist = _list_in(rules, "blocklist")
        if self._subject.part_in(blocklist.networks).is_whole:
            name = next(rule.rule for rule in rules if rule.action == "blocklist")
            self._refuse(Reason("blocklist", name, EVERY + self._where))
            return
        unknown = self._unknown_of(blocklist)
        if unknown:
            self._standing.leave_out(unknown)

    def _unknown_of(self, some: _List) -> str:
        """Return what is not known of the client and a list that does not contain all of it; empty if all is."""
        if not self._subject.is_address and (some.networks or some.unpublished):
            return f"whether its address is on the {some.kind}"
        if some.unpublished:
            return (
                f"whether it is on the {some.kind} of {some.unpublished:,} ranges, which are too many to be published"
            )
        if self._subject.part_in(some.networks).is_any:
            return f"the part of it that is on the {some.kind}"
        return ""

    def _look_at_bans(self, rules: Sequence[PublishedRule]) -> None:
        """Look at the bans that concern every request; those of the key of one rule concern its requests alone."""
        own = {self._subject.key}
        for rule in rules:
            if rule.action == "client":
                own.add(self._subject.client_key(rule))
        readers = [rule for rule in rules if rule.action == "ban"]
        for ban in self._bans.near:
            if self._subject.is_address:
                part = self._subject.part_banned(ban)
                if part.is_whole or ban.key in own:
                    self._refuse(Reason("ban", ban.by, EVERY + self._where, ban=ban))
                elif part.is_any:
                    self._standing.leave_out(f"the part of it that is banned: {ban.key}")
            elif ban.key == self._subject.key and any(counted_as(one, self._subject).key for one in readers):
                self._refuse(Reason("ban", ban.by, EVERY + self._where, ban=ban))

    def _note_other_bans(self, rules: Sequence[PublishedRule]) -> None:
        """Note the kinds of keys of other bans that requests of the client may have."""
        read = {shown(rule.key) for rule in rules} | {ADDRESS}
        for kind in sorted(self._bans.kinds):
            if kind == "asn":
                self._standing.leave_out("bans of its operator")
            elif kind in read and kind != self._subject.kind:
                self._standing.leave_out(f"bans of its {kind}")

    # -- rules, in order -----------------------------------------------------------------------------------------------

    def _look_at(self, rule: PublishedRule) -> None:
        if rule.at_endpoint:  # whatever the list has decided
            self._judge(rule, [], [])
            return
        if self._is_over:
            return
        if rule.requests not in self._passed:
            passed = [one for one in self._passed if _may_meet(one, rule.requests)]
            self._judge(rule, passed, self._perhaps)
        if rule.final or rule.action == "exempt":
            self._end_list(rule)

    def _end_list(self, rule: PublishedRule) -> None:
        """Note for which requests a rule ends the list: if a condition holds, for its own, or for all."""
        if rule.conditional:
            self._perhaps.append(rule.rule)
        elif rule.requests:
            self._passed.append(rule.requests)
        else:
            self._is_over = True

    def _judge(self, rule: PublishedRule, passed: Sequence[str], perhaps: Sequence[str]) -> None:
        """Note what a rule refuses, and whether that is certain."""
        if rule.action == "block":
            reason = Reason("block", rule.rule, self._named(rule), tuple(passed), of_some=bool(rule.requests))
            self._judge_reason(rule, reason, perhaps)
            return
        if rule.action != "limit" or rule.shadow:
            return
        counted = counted_as(rule, self._subject)
        if not counted.key or counted.among:
            note_other_key(self._standing.other_keys, rule, self._subject)
        if not counted.key:
            return
        requests = self._named(rule) + counted.among
        of_some = bool(rule.requests or counted.among)
        for ban in self._bans.near:
            if ban.key == counted.key:
                reason = Reason("ban", ban.by, requests, tuple(passed), of_some=of_some, ban=ban)
                self._judge_reason(rule, reason, perhaps)
        if rule.by_function:
            self._standing.leave_out(f"the limits of {rule.rule}, which a function returns")
            return
        window = self._windows.get(rule)
        if window is not None:
            reason = Reason("limit", rule.rule, requests, tuple(passed), of_some=of_some, window=window.state)
            self._judge_window(rule, reason, perhaps)

    def _judge_window(self, rule: PublishedRule, reason: Reason, perhaps: Sequence[str]) -> None:
        """Note whether a window has room for the cost of a request."""
        state = reason.window
        assert state is not None, "the caller has looked at it"
        if rule.cost_by_function:
            if state.used:
                self._standing.leave_out(
                    f"what a request costs under {rule.rule}, which a function returns: {state.remaining} are left"
                )
            return
        if state.remaining >= max(rule.cost, 1):
            return
        # A request waits where it would have room in time, unless too many do.
        wait_us = state.retry_after_us
        if rule.wait_us and (wait_us is None or wait_us <= rule.wait_us):
            self._standing.leave_out(f"whether requests may wait for {rule.rule}, up to {rule.wait_us / 1_000_000:g} s")
            return
        if rule.leased:
            self._standing.leave_out(
                f"units of {rule.rule} that workers have leased for a second at most; else it refuses"
            )
            return
        self._judge_reason(rule, reason, perhaps)

    def _judge_reason(self, rule: PublishedRule, reason: Reason, perhaps: Sequence[str]) -> None:
        """Note a reason if it is certain, else on what it depends."""
        if self._is_known(reason):
            return
        if rule.conditional:
            self._standing.leave_out(f"whether the condition of {rule.rule} holds, which refuses then")
        elif perhaps:
            self._standing.leave_out(f"whether {' or '.join(perhaps)} lets it pass, else {rule.rule} refuses")
        else:
            self._refuse(reason)

    def _refuse(self, reason: Reason) -> None:
        if self._may_be_allowed:
            self._standing.leave_out(f"{reason.by}, which refuses if it is not allowed")
        else:
            self._standing.reasons.append(reason)

    def _is_known(self, reason: Reason) -> bool:
        """Return whether a reason was noted before, or its ban for all of its requests.

        A rule has a row for each of its limits, and several rules may concern the same requests, counted by one key.
        """
        for noted in self._standing.reasons:
            if noted == reason:
                return True
            if reason.ban is None or noted.ban is not reason.ban:
                continue
            concerns_all = noted.requests in (EVERY + self._where, reason.requests)
            if concerns_all and set(noted.apart_from) <= set(reason.apart_from):
                return True
        return False

    def _named(self, rule: PublishedRule) -> str:
        return (rule.requests or EVERY) + self._where


def _may_meet(one: str, other: str) -> bool:
    """Return whether requests may be among both of two kinds, as published rules name them."""
    paths, others = _paths_in(one), _paths_in(other)
    if not paths or not others or "{" in one or "{" in other:
        return True
    return not paths.isdisjoint(others)


def _paths_in(requests: str) -> set[str]:
    return {word for word in requests.split() if word.startswith("/")}


def _order(rule: PublishedRule) -> tuple[int, bool, str, str]:
    return rule.order, rule.at_endpoint, rule.rule, rule.name


def _list_in(rules: Iterable[PublishedRule], kind: str) -> _List:
    """Return a list of a middleware, which is empty if it has none."""
    of_list = [rule for rule in rules if rule.action == kind]
    unpublished = sum(rule.size for rule in of_list if rule.size and not rule.ranges)
    return _List(kind, networks_of(rule.ranges for rule in of_list), unpublished)
