"""What an operator should know first, as one sentence with what can be done about it.

The sentence is a function of the counts of the last five minutes::

    counts by rule ----> the rule that refuses most, without the clients that are banned by now
    counts by client --> who is refused by it: one, several, or many of whom none stands out
    what is known ----> whether that one stands for many: a network, a proxy, an address with several users

It accuses one client alone: an address that goes on although most of its requests are refused, and behind which nothing
shows that there are several people. What was not looked at is not spoken of, or named as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Any, Final, NamedTuple

from .incident import Kind, Proposal, Seen, Statement
from .kinds import ADDRESS, EVERYONE, FUNCTION, beginnings_of
from .traffic import ClientTraffic, Traffic

STANDS_OUT: Final = 1 / 3
"""The share of a rule's refusals from which one client is named."""
GOES_ON: Final = 0.8
"""The share of its requests that are refused to a client that goes on regardless."""
MIN_REFUSALS: Final = 20
"""So many refusals are no accident."""
MANY_KEYS: Final = 3
"""With so many users, cookies or API keys an address is that of several people."""
_MINUTE_US: Final = 60_000_000
"""Clients are counted by the minute."""
MAX_PREFIXES: Final = {4: 32, 6: 64}
"""The prefix of one client by the version of its address; a shorter one is a network of many."""
_OF_CLIENTS: Final = frozenset({"", ADDRESS, FUNCTION})
"""The kinds of keys of rules that count clients; an unknown kind may be one of these."""


class _Worst(NamedTuple):
    """The rule that refuses most, apart from clients that are banned by now.

    Attributes:
        rule: The label of the rule.
        refusals: How many requests it refused, without those of these clients.
        of_whom: Whose refusals these are, in words; empty for those of all.
    """

    rule: str
    refusals: int
    of_whom: str


class _Refused(NamedTuple):
    """A client or key that a rule refuses, and how often."""

    traffic: ClientTraffic
    times: int
    is_client: bool


def statement_of(seen: Seen) -> Statement:
    """Return the sentence for what was seen."""
    notes = tuple(_not_seen(seen))
    found = _of_system(seen) or _of_rules(seen) or _of_calm(seen)
    return Statement(found.kind, found.text, found.values, found.actions, notes)


def _not_seen(seen: Seen) -> Iterable[str]:
    """Yield what the counts do not contain."""
    if not seen.is_shared:
        yield "This worker alone: the store is in memory."
    elif seen.total is not None and seen.workers > seen.counted_workers:
        yield f"Counts of {seen.counted_workers} of {seen.workers} workers: the others have written none."


# -- the store and the switch come first: with either, the counts say little -------------------------------------------

_MEANWHILE: Final = {
    "local": "each worker counts alone",
    "allow": "requests pass uncounted",
    "deny": "requests are refused",
}


def _of_system(seen: Seen) -> Statement | None:
    if seen.off_until:
        text = "All workers are switched off until {until} by {by}: every request passes"
        return Statement(Kind.OFF, text, {"until": seen.off_until, "by": seen.off_by})
    if seen.outage is not None:
        meanwhile = _MEANWHILE[seen.outage.on_error]
        if not seen.outage.since_us:
            return Statement(Kind.AWAY, f"The store is away; {meanwhile}")
        since = {"since": seen.outage.since_us / 1_000_000}
        return Statement(Kind.AWAY, "The store is away since {since}; " + meanwhile, since)
    if seen.total is None:
        return Statement(Kind.AWAY, "The store did not answer this page, so nothing is known of the last five minutes")
    if seen.total.unavailable > _limited(seen.total):
        text = "The store did not answer in time for {part} of {whole} requests, which were refused"
        return Statement(Kind.UNAVAILABLE, text, {"part": seen.total.unavailable, "whole": _requests(seen.total)})
    return None


def _requests(traffic: Traffic) -> int:
    return traffic.passed + traffic.refused + traffic.unavailable


def _limited(traffic: Traffic | ClientTraffic) -> int:
    """Return how many requests limits refused: not bans, not lists."""
    return traffic.refused - traffic.banned - traffic.blocked


# -- the rule that refuses most ----------------------------------------------------------------------------------------


def _of_rules(seen: Seen) -> Statement | None:
    """Return the sentence for the rule that refuses most."""
    worst = _worst_of(seen)
    if worst is None:
        return None
    if seen.kinds.get(worst.rule) == EVERYONE:
        return _of_everyone(seen, worst.rule)
    refused = _refused_by(seen, worst.rule)
    if not refused:
        return _of_unseen(seen, worst.rule)
    # What is written between two reads may be in one of them alone.
    worst = worst._replace(refusals=max(worst.refusals, refused[0].times))
    if refused[0].times >= STANDS_OUT * worst.refusals:
        return _of_one(seen, worst, refused[0])
    return _of_crowd(seen, worst, refused)


def _worst_of(seen: Seen) -> _Worst | None:
    """Return the rule that refuses most; None if none refuses anybody else."""
    worst = _Worst("", 0, "")
    for rule, traffic in seen.rules.items():
        of_banned = _times_of_banned(seen, rule)
        refusals = _limited(traffic) - of_banned
        if refusals <= worst.refusals:
            continue
        of_whom = ""
        if of_banned:
            of_whom = " of clients that are not banned"
        worst = _Worst(rule, refusals, of_whom)
    if not worst.refusals:
        return None
    return worst


def _times_of_banned(seen: Seen, rule: str) -> int:
    times = 0
    for one in seen.clients.refused:
        if one.key in seen.banned:
            times += one.refused_by.get(rule, 0)
    return times


def _refused_by(seen: Seen, rule: str) -> list[_Refused]:
    """Return who is refused by a rule and not banned: keys of the kind that it reads, else clients; most first."""
    kind = seen.kinds.get(rule, "")
    if kind not in _OF_CLIENTS:
        beginnings = beginnings_of(kind)
        of_kind = [one for one in seen.keys.refused if one.key.startswith(beginnings)]
        keys = _refused_among(of_kind, seen, rule, is_client=False)
        if keys:
            return keys
    return _refused_among(seen.clients.refused, seen, rule, is_client=True)


def _refused_among(some: Iterable[ClientTraffic], seen: Seen, rule: str, *, is_client: bool) -> list[_Refused]:
    found = []
    for one in some:
        times = one.refused_by.get(rule, 0)
        if times and one.key not in seen.banned:
            found.append(_Refused(one, times, is_client))
    return sorted(found, key=lambda one: -one.times)


def _share(seen: Seen, rule: str) -> dict[str, Any]:
    """Return the values that each sentence about a rule has."""
    traffic = seen.rules[rule]
    return {"rule": rule, "share": 100 * _limited(traffic) / max(_requests(traffic), 1)}


def _since(seen: Seen, since_us: int) -> tuple[str, dict[str, Any]]:
    """Return since when in words, if that was seen: at the edge of what is kept it may have begun before."""
    if not since_us:
        return "", {}
    if seen.is_cut and since_us < seen.from_us + _MINUTE_US:
        return f", for {seen.span} or longer", {}
    return ", since {since}", {"since": since_us / 1_000_000}


def _of_one(seen: Seen, worst: _Worst, refused: _Refused) -> Statement:
    """Return the sentence about one client or key."""
    one = refused.traffic
    when, since = _since(seen, one.refused_since_us)
    parts = {"part": refused.times, "whole": worst.refusals, "offender": one.key}
    values = {**_share(seen, worst.rule), **parts, **since}
    text = f"{{rule}} refuses {{share}}: {{part}} of {{whole}} refusals{worst.of_whom} are {{offender}}{when}"
    actions = [Proposal("look", one.key), *_raise(seen, worst.rule)]
    many = stands_for(one)
    if many:
        return Statement(Kind.SHARED_ADDRESS, f"{text}. {many}", values, tuple(actions))
    if refused.is_client and _goes_on(one):
        values["passed"] = one.passed
        text += ", which goes on: {passed} of its requests passed"
        return Statement(Kind.FLOOD, text, values, (Proposal("ban", one.key), *actions))
    return Statement(Kind.AT_LIMIT, text, values, tuple(actions))


def _goes_on(one: ClientTraffic) -> bool:
    """Return whether a client goes on although most of its requests are refused."""
    refusals = _limited(one)
    return refusals >= MIN_REFUSALS and refusals >= GOES_ON * one.requests


def _raise(seen: Seen, rule: str) -> list[Proposal]:
    """Return the action that makes a limit of a rule larger, if it can be changed."""
    if rule not in seen.larger:
        return []
    return [Proposal("raise", *seen.larger[rule])]


def stands_for(one: ClientTraffic) -> str:
    """Return what shows that many clients stand behind one; empty if nothing does."""
    if len(one.others) >= MANY_KEYS:
        return f"Many share this address: at least {len(one.others)} users, cookies or API keys came from it"
    try:
        network = ip_network(one.key)
    except ValueError:
        if one.key == "unknown-peer" or one.key.startswith("peer:"):
            return "Many may share it: these requests came without an address, perhaps from a proxy"
        if one.key.startswith("asn:"):
            return "Many share it: all addresses of a network operator are counted together"
        return ""
    if network.prefixlen < MAX_PREFIXES[network.version]:
        return "Many share it: all addresses of this network are counted together"
    if _is_own(network):
        return "Many may share it: it is an address of your own network, perhaps a proxy's"
    return ""


_OWN: Final = {
    4: [*map(ip_network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))],
    6: [*map(ip_network, ("fc00::/7", "fe80::/10", "::1/128"))],
}


def _is_own(network: Any) -> bool:
    """Return whether an address is one that only an own network has; `is_private` also knows those of examples."""
    return any(network.subnet_of(own) for own in _OWN[network.version])


def _of_everyone(seen: Seen, rule: str) -> Statement:
    """Return the sentence about a limit that all clients share."""
    values = {**_share(seen, rule), "limits": seen.limits.get(rule, "")}
    text = "{rule} refuses {share}: all clients together reach its limit"
    if values["limits"]:
        text += " of {limits}"
    actions = [Proposal("open", rule), *_raise(seen, rule)]
    whole = _requests(seen.total or Traffic())
    busiest = next(iter(seen.clients.busiest), None)
    if busiest is not None and busiest.requests >= STANDS_OUT * whole:
        values |= {"part": busiest.requests, "whole": whole, "offender": busiest.key}
        text += "; {part} of {whole} requests are {offender}"
        actions.insert(0, Proposal("look", busiest.key))
    return Statement(Kind.EVERYONE, text, values, tuple(actions))


def _of_unseen(seen: Seen, rule: str) -> Statement:
    """Return the sentence about a rule whose clients are in no counts."""
    actions = (Proposal("open", rule), *_raise(seen, rule))
    return Statement(Kind.CROWD, "{rule} refuses {share}: its clients were not seen", _share(seen, rule), actions)


def _of_crowd(seen: Seen, worst: _Worst, refused: Sequence[_Refused]) -> Statement:
    """Return the sentence about many clients of whom none stands out."""
    number = "{number}"
    if sum(one.times for one in refused) < worst.refusals:  # workers keep those that are refused most
        number = "at least {number}"
    what = "keys"
    if refused[0].is_client:
        what = "clients"
    begun_us = [one.traffic.refused_since_us for one in refused if one.traffic.refused_since_us]
    when, since = _since(seen, min(begun_us, default=0))
    text = (
        f"{{rule}} refuses {{share}}: {number} {what}, none with more than {{part}} of {{whole}} "
        f"refusals{worst.of_whom}{when}"
    )
    parts = {"number": len(refused), "part": refused[0].times, "whole": worst.refusals}
    actions = (Proposal("open", worst.rule), *_raise(seen, worst.rule))
    return Statement(Kind.CROWD, text, {**_share(seen, worst.rule), **parts, **since}, actions)


# -- limits refuse nobody, or nobody who is not banned by now ----------------------------------------------------------


def _of_calm(seen: Seen) -> Statement:
    total = seen.total or Traffic()
    requests = _requests(total)
    if not requests:
        return Statement(Kind.NO_REQUESTS, f"No request was counted in {seen.span}{_why_none(seen)}")
    if not total.refused:
        return Statement(Kind.QUIET, f"Nothing was refused in {seen.span}, of {{whole}} requests", {"whole": requests})
    text = "Limits refuse nobody; bans and lists refuse {share}"
    if _limited(total):
        text = "Limits refused only clients that are banned by now"
    values: dict[str, Any] = {"share": 100 * total.refused / requests}
    one = next(iter(seen.clients.refused), None)
    if one is None or one.refused < STANDS_OUT * total.refused:
        return Statement(Kind.STOPPED, text, values)
    text += ": {part} of {whole} refusals are {offender}"
    values |= {"part": one.refused, "whole": total.refused, "offender": one.key}
    if one.key not in seen.banned:
        return Statement(Kind.STOPPED, text, values, (Proposal("look", one.key),))
    actions = (Proposal("look", one.key), Proposal("unban", one.key))
    return Statement(Kind.STOPPED, f"{text}, which is banned", values, actions)


def _why_none(seen: Seen) -> str:
    """Return what explains that no request was counted: nobody uses the limiter, as far as that is known."""
    if seen.workers:
        return ""
    if seen.is_shared:
        return ", and no worker has published its rules within a minute"
    return ": no middleware uses this limiter; give RateLimitMiddleware(limiter=...) the one of the dashboard"
