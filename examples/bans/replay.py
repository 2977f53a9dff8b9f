"""Counts whom the policies ban when an access log is replayed.

The application behind the middleware answers with the status that stands in the log, and the log's client is the peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from examples.demo.replay import MadeBan, bans_of, play
from examples.login.protection import subjects
from slidegate import Limiter, MemoryStore, Networks
from slidegate.core import Reason
from slidegate.core.addresses import canonical_key
from slidegate.logs import AccessRecord
from slidegate.testing import FakeClock

PRIVATE = Networks(["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"])


@dataclass
class Visits:
    """The requests of one client, and their fate.

    Attributes:
        requests: How many requests the client made.
        errors: How many of them were answered with a 4xx, says the log.
        missed: The paths of those requests.
        limited: How many of its requests each rule's limit refused.
        refusal: How many of them a ban refused.
    """

    requests: int = 0
    errors: int = 0
    missed: set[str] = field(default_factory=set)
    limited: Counter[str] = field(default_factory=Counter)
    refusal: int = 0

    @property
    def is_scanner(self) -> bool:
        """Whether it looks for what is not there: 50 requests, nine of ten in vain, for ten different things.

        A program that asks for one missing file again and again is broken, and no scanner.
        """
        return self.requests >= 50 and self.errors >= 0.9 * self.requests and len(self.missed) >= 10


@dataclass
class Report:
    """What became of a log.

    Attributes:
        clients: What each client did.
        bans: All bans that were made, oldest first.
    """

    clients: dict[str, Visits] = field(default_factory=dict)
    bans: list[MadeBan] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return sum(visits.requests for visits in self.clients.values())

    @property
    def private(self) -> set[str]:
        """Clients with loopback and private addresses, which no policy bans."""
        return {client for client in self.clients if client in PRIVATE}

    @property
    def scanners(self) -> set[str]:
        """Scanners that can be banned."""
        return {client for client, visits in self.clients.items() if visits.is_scanner} - self.private

    @property
    def clean(self) -> set[str]:
        """Clients that never got a 4xx."""
        return {client for client, visits in self.clients.items() if not visits.errors}

    @property
    def banned(self) -> set[str]:
        """Clients that a ban was made for, or that are in a banned network and came while it was."""
        named = {ban.key for ban in self.bans}
        return {client for client, visits in self.clients.items() if visits.refusal or canonical_key(client) in named}

    @property
    def refusal(self) -> int:
        """How many requests bans refused."""
        return sum(visits.refusal for visits in self.clients.values())

    def limited(self, *rules: str) -> dict[str, int]:
        """Return which clients limits of some rules refused, and how often."""
        counts = {client: sum(visits.limited[rule] for rule in rules) for client, visits in self.clients.items()}
        return {client: count for client, count in counts.items() if count}


async def logged(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the status of the log; where it notes that there was no answer, with a 500."""
    await Response(status_code=Request(scope).state.status or 500)(scope, receive, send)


async def replay_bans(records: Iterable[AccessRecord]) -> Report:
    """Send the requests of a log, in the order of their times, through the middleware."""
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    report = Report(bans=bans_of(limiter, clock))
    async for record, _, _, decision in play(subjects(logged, limiter), clock, records):
        visits = report.clients.setdefault(record.client, Visits())
        visits.requests += 1
        if 400 <= record.status < 500:
            visits.errors += 1
            visits.missed.add(record.path)
        if decision.reason is Reason.LIMITED and decision.binding is not None:
            visits.limited[decision.binding.rule] += 1
        visits.refusal += decision.reason is Reason.BANNED
    return report
