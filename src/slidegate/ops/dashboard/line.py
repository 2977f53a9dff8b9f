"""The line on top of the page: one of five kinds, computed from the rows below it alone.

    off, away    the limits are off, or the store is away, and what that means now
    calm         nobody was refused in the last five minutes
    one          one client has more than half of the refusals
    several      how many clients were refused, and which rule refused most

Clients that are banned by now stand apart in the same sentence. A ban is proposed only of one address, alone, that has
nearly all refusals by a limit: nothing tells to look at it first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ... import Networks
from ...core.addresses import network_of
from ...core.bans.policy import PRIVATE
from ..rows import NO_VALUE, share
from ..statistics import ClientTraffic
from ..traffic import limits_in

MIN_REFUSALS: Final = 20
"""From so many refusals on, one client is named: fewer may be an accident."""
NEARLY_ALL: Final = 0.9
"""From such a part of the refusals on, a client may be banned at once."""
MANY_KEYS: Final = 3
"""With so many users, cookies or API keys an address is that of several people."""
MEANWHILE: Final = {
    "local": "each worker counts alone",
    "allow": "requests pass uncounted",
    "deny": "requests are refused with 503",
}
"""What happens while the store is away, by `on_error`."""


class ClientRow(NamedTuple):
    """A client, or a key of another kind.

    Attributes:
        rule: What refused it most: a rule, a list, or ``ban by ann``; else the rule that counted it most.
        limits: The limits of the rule that it met, with the amounts in force for it.
        refused: How many of its requests were refused.
        requests: How many requests it sent.
        by: How many requests each of these has refused.
        is_banned: Whether it is banned by now.
        caution: Why to look at it before it is banned, for example as many people stand behind it; empty for nothing.
    """

    key: str
    rule: str
    limits: str
    refused: int
    requests: int
    by: Mapping[str, int]
    is_banned: bool
    caution: str


class Refusals(NamedTuple):
    """Who was refused in the last five minutes. All refusals are `whole`, `of_banned` and `unlisted`.

    Attributes:
        rows: The clients, those first that were refused most; each worker lists 100 of a minute.
        clients: How many of them are not banned.
        whole: How many refusals these had.
        rule: What refused most of these.
        banned: How many of the rows are banned by now.
        of_banned: How many refusals these had.
        unlisted: How many refusals are in no row: whether their clients are banned by now is not known.
    """

    rows: Sequence[ClientRow]
    clients: int
    whole: int
    rule: str
    banned: int
    of_banned: int
    unlisted: int


class Line(NamedTuple):
    """What an operator should know first.

    Attributes:
        kind: ``off``, ``away``, ``calm``, ``one`` or ``several``.
        refusals: What it is computed from; None if that is not known.
        client: The client that it names; None for none.
        actions: What can be done, the first one first: ``ban`` or ``look`` at the client, or ``change`` the limit that
            refuses it; without a client, look at all.
    """

    kind: str
    text: str
    refusals: Refusals | None = None
    client: ClientRow | None = None
    actions: Sequence[str] = ()


def refusals_of(rows: Sequence[ClientRow], refused: int) -> Refusals:
    """Return who was refused.

    Args:
        rows: The clients that were refused, the most refused first.
        refused: How many requests were refused in the same time.
    """
    unbanned = [row for row in rows if not row.is_banned]
    by_rule = Counter({NO_VALUE: 0})
    for row in unbanned:
        by_rule.update(row.by)
    whole = sum(row.refused for row in unbanned)
    of_banned = sum(row.refused for row in rows) - whole
    rule = by_rule.most_common(1)[0][0]
    # Workers write both counts in two rows: a read between may see a refusal in one of them alone.
    unlisted = max(refused - whole - of_banned, 0)
    return Refusals(rows, len(unbanned), whole, rule, len(rows) - len(unbanned), of_banned, unlisted)


def line_of(refusals: Refusals) -> Line:
    """Return the line about who was refused."""
    kind = "several"
    client = None
    actions = ["look"]
    texts = []
    least = ""
    if refusals.unlisted:
        least = "at least "
    if refusals.whole:
        texts.append(f"Clients refused: {least}{refusals.clients:,}, {refusals.whole:,} times, most by {refusals.rule}")
    unbanned_at_most = refusals.whole + refusals.unlisted
    for row in refusals.rows:
        if not row.is_banned and row.refused > unbanned_at_most / 2 and refusals.whole >= MIN_REFUSALS:
            kind = "one"
            client = row
            texts = [f"{row.key} has {share(row.refused, refusals.whole)} of {refusals.whole:,} refusals"]
            if row.caution:
                texts.append(f"look first: {row.caution}")
                actions.append("change")
            elif row.refused > NEARLY_ALL * unbanned_at_most:
                actions.insert(0, "ban")
    if refusals.banned:
        texts.append(f"Banned clients: {least}{refusals.banned:,}, refused {refusals.of_banned:,} times")
    if refusals.unlisted:
        texts.append(f"Not listed: {refusals.unlisted:,} refusals")
    if not texts:
        return Line("calm", "Nobody was refused in the last five minutes", refusals)
    return Line(kind, "; ".join(texts), refusals, client, actions)


def caution_of(client: ClientTraffic, of_everyone: Collection[str], proxies: Collection[Networks]) -> str:
    """Return why to look at a client before it is banned; empty for an address, alone, that a limit refuses by now.

    Args:
        of_everyone: The labels of the rules that count all clients together.
        proxies: The networks of trusted proxies.
    """
    if client.refused_min_ago > 1:
        return f"its last listed refusals are about {client.refused_min_ago} min old"
    limits = client.amounts.get(client.rule, "")
    if not limits:
        return "no limit has refused it most"
    if " from " in " ".join(limits_in(limits)):
        return "it has spent a quota"
    if client.rule in of_everyone:
        return f"{client.rule} counts all clients together"
    if len(client.others) >= MANY_KEYS:
        return "several users, cookies or API keys came from it"
    network = network_of(client.key)
    if network is None:
        return "it is no address"  # but a key, an operator, or all that come without an address
    version, first, last = network
    if last - first >= {4: 1, 6: 2**64}[version]:  # more than one address, or one /64
        return "all addresses of this network are counted together"
    if any(networks.overlaps(version, first, last) for networks in proxies):
        return "it is a trusted proxy"
    if PRIVATE.overlaps(version, first, last):
        return "it is an address of your own network, perhaps a proxy's"
    return ""
