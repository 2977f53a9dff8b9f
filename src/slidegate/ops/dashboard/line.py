"""The line on top of the page: one of five kinds, computed from the rows below it alone.

    off, away    the limits are off, or the store is away, and what that means now
    calm         nobody was refused in the last five minutes, or nobody who is not banned by now
    one          one client has more than half of the refusals
    several      how many clients were refused, and which rule refused most

The line leaves out clients that are banned by now. It proposes a ban only of a client behind which nothing shows many
people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ... import Networks
from ...core.addresses import network_of
from ...core.bans.policy import PRIVATE
from ...limiter import Publication
from ..kinds import EVERYONE
from ..statistics import ClientTraffic
from .texts import count, share

MIN_REFUSALS: Final = 20
"""From so many refusals on, one client is named: fewer may be an accident."""
MANY_KEYS: Final = 3
"""With so many users, cookies or API keys an address is that of several people."""
ONE_CLIENT: Final = {4: 1, 6: 2**64}
"""How many addresses one client has, by their version; a larger network is one of many."""
MEANWHILE: Final = {
    "local": "each worker counts alone",
    "allow": "requests pass uncounted",
    "deny": "requests are refused",
}
"""What happens while the store is away, by `on_error`."""


class ClientRow(NamedTuple):
    """A client, or a key of another kind.

    Attributes:
        rule: What refused it most: a rule, a list, or the maker of a ban; else the rule that counted it most.
        limits: The limits of the rule that it met, with the amounts in force for it.
        refused: How many of its requests were refused.
        requests: How many requests it sent.
        is_banned: Whether it is banned by now.
        many: What shows that many people stand behind it; empty if nothing does.
    """

    key: str
    rule: str
    limits: str
    refused: int
    requests: int
    is_banned: bool
    many: str


class Refusals(NamedTuple):
    """Who was refused in the last five minutes.

    Attributes:
        rows: The clients, those first that were refused most.
        clients: How many of them are not banned.
        whole: How many refusals there were, without those of clients that are banned by now.
        rule: What refused most of these; empty if there are none.
    """

    rows: Sequence[ClientRow]
    clients: int
    whole: int
    rule: str


class Proposal(NamedTuple):
    """Something that an operator may do.

    Attributes:
        does: ``ban`` or ``look`` at a client, ``open`` a rule, or ``raise`` a limit.
        target: The client, the rule, or the name of the limit; empty to look at all clients.
        limit: The limit in place of the present one; empty for other actions.
    """

    does: str
    target: str
    limit: str = ""


class Line(NamedTuple):
    """What an operator should know first.

    Attributes:
        kind: ``off``, ``away``, ``calm``, ``one`` or ``several``.
        refusals: What it is computed from; None if that is not known.
        client: The client that it names; None for none.
        actions: What can be done, the first one first.
    """

    kind: str
    text: str
    refusals: Refusals | None = None
    client: ClientRow | None = None
    actions: tuple[Proposal, ...] = ()


def row_of(client: ClientTraffic, is_banned: bool, many: str = "") -> ClientRow:
    """Return the row of a client, given what is not in its counts."""
    rule = client.rule
    limits = client.amounts.get(rule, "")
    if client.banned and not limits:  # only a limit that refused has these
        rule = f"ban of {rule}"
    return ClientRow(client.key, rule, limits, client.refused, client.requests, is_banned, many)


def refusals_of(clients: Iterable[ClientRow], refused: int) -> Refusals:
    """Return who was refused.

    Args:
        clients: The clients that were refused.
        refused: How many requests were refused in the same time.
    """
    rows = sorted(clients, key=lambda row: (-row.refused, row.key))
    unbanned = [row for row in rows if not row.is_banned]
    by_rule = Counter[str]()
    for row in unbanned:
        by_rule[row.rule] += row.refused
    of_banned = sum(row.refused for row in rows) - by_rule.total()
    # Workers write both counts in two rows: a read between may see a refusal in one of them alone.
    whole = max(refused - of_banned, by_rule.total())
    rule = max(by_rule, key=lambda name: (by_rule[name], name), default="")
    return Refusals(rows, len(unbanned), whole, rule)


def line_of(refusals: Refusals, limits: Iterable[Any]) -> Line:
    """Return the line about who was refused.

    Args:
        refusals: Who was refused.
        limits: The limits of this process.
    """
    if not refusals.rows:
        return Line("calm", "Nobody was refused in the last five minutes", refusals)
    unbanned = [row for row in refusals.rows if not row.is_banned]
    if not unbanned:
        return Line("calm", "Nobody who is not banned by now was refused in the last five minutes", refusals)
    if refusals.whole >= MIN_REFUSALS and unbanned[0].refused > refusals.whole / 2:
        return _line_of_one(unbanned[0], refusals, limits)
    text = f"{count(refusals.clients)} clients were refused, most by {refusals.rule}"
    if refusals.clients == 1:
        text = f"1 client was refused, by {refusals.rule}"
    action = Proposal("look", "")
    if any(row.limits for row in unbanned if row.rule == refusals.rule):  # else it is a list or a ban
        action = Proposal("open", refusals.rule)
    return Line("several", text, refusals, actions=(action,))


def _line_of_one(row: ClientRow, refusals: Refusals, limits: Iterable[Any]) -> Line:
    """Return the line about a client with most of the refusals."""
    text = f"{row.key} has {share(row.refused, refusals.whole)} of {count(refusals.whole)} refusals"
    look = Proposal("look", row.key)
    if not row.many:
        return Line("one", text, refusals, row, (Proposal("ban", row.key), look))
    text = f"{text}, and stands for many: {row.many}"
    of_rule = [limit for limit in limits if limit.rule == row.rule and limit.changeable and not limit.shadow]
    if len(of_rule) != 1:  # of several it is not known which one refused
        return Line("one", text, refusals, row, (look,))
    (limit,) = of_rule
    higher = Proposal("raise", limit.name, limit.with_amount(2 * limit.limit.amount))
    return Line("one", text, refusals, row, (look, higher))


def stands_for(client: ClientTraffic, kinds: Mapping[str, str], proxies: Collection[Networks]) -> str:
    """Return what shows that many people stand behind a client; empty if nothing does.

    Args:
        kinds: The kind of key that each rule reads, by its label.
        proxies: The networks of trusted proxies.
    """
    if kinds.get(client.rule) == EVERYONE:
        return f"{client.rule} counts all clients together"
    if len(client.others) >= MANY_KEYS:
        return "several users, cookies or API keys came from it"
    if client.key == "unknown-peer" or client.key.startswith("peer:"):
        return "its requests came without an address, perhaps from a proxy"
    if client.key == EVERYONE or client.key.startswith("asn:"):
        return "all of its clients are counted together"
    network = network_of(client.key)
    if network is None:
        return ""
    version, first, last = network
    if last - first + 1 > ONE_CLIENT[version]:
        return "all addresses of this network are counted together"
    if any(networks.overlaps(version, first, last) for networks in proxies):
        return "it is a trusted proxy"
    if PRIVATE.overlaps(version, first, last):
        return "it is an address of your own network, perhaps a proxy's"
    return ""


def kinds_of(published: Sequence[Publication]) -> dict[str, str]:
    """Return the kind of key that each rule reads; of a name that two rules have, nothing is known."""
    kinds: dict[str, str] = {}
    for publication in published:
        for rule in publication.rules:
            if kinds.setdefault(rule.rule, rule.key) != rule.key:
                kinds[rule.rule] = ""
    return kinds
