"""The clients of a log, each classified as a person, a crawler, a scanner or a program.

`ClientTally.classify` applies these rules to the requests of a client, in this order, and names the one that matched:

* scanner: at least a tenth are for paths that only scanners request, or most fail with 4xx on many paths;
* crawler: most have the user agent of a crawler;
* person: most have the user agent of a browser, and at most half fail with 4xx;
* program: none of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Final, NamedTuple
from zlib import crc32

from starlette.types import Scope

from ..limiter import Limiter
from ..logs import AccessRecord
from ..web import keys as web_keys
from ..web.client_ip import client_ip
from .replay import scope_of

MAX_AGENTS: Final = 32
MAX_PATHS: Final = 64
MAX_AGENT: Final = 200
PROXY_AGENTS: Final = 10
"""An address with this many user agents is probably a proxy or a NAT."""
SCANNER: Final = "scanner"
CRAWLER: Final = "crawler"
PERSON: Final = "person"
PROGRAM: Final = "program"
_PROBES: Final = re.compile(
    r"/\.env|/\.git\b|/\.aws|/\.ssh|/wp-(?:login|admin|content|includes)|/xmlrpc\.php|/phpmyadmin|/cgi-bin/|/vendor/phpunit"
    r"|/etc/passwd|\.\./|/boaform|/actuator|/setup\.php|/shell\b|\.(?:bak|sql|old)$",
    re.IGNORECASE,
)
_CRAWLS: Final = re.compile(r"bot\b|bot/|crawl|spider|slurp|feed|archive|monitor|preview", re.IGNORECASE)
_BROWSES: Final = re.compile(r"^(?:Mozilla|Opera)/")
_PROBED: Final = 3
_PROBED_SHARE: Final = 0.1
_MANY_PATHS: Final = 5


@lru_cache(maxsize=4_096)
def _kind_of_agent(agent: str) -> str:
    return CRAWLER if _CRAWLS.search(agent) else PERSON if _BROWSES.match(agent) else PROGRAM


class Classification(NamedTuple):
    """The kind of a client, and the reason.

    Attributes:
        kind: ``"person"``, ``"crawler"``, ``"scanner"`` or ``"program"``.
        why: The rule that matched, in a few words.
    """

    kind: str
    why: str


@dataclass(slots=True)
class ClientTally:
    """The counts of one client. Its size is bounded, whatever the client sends.

    Attributes:
        requests: The number of requests.
        refused: Those that a limit refused.
        banned: Those that a ban refused.
        failed: Those that the log has with a status of 4xx other than 429.
        succeeded: Those that the log has with a status below 400.
        crawled: Those with the user agent of a crawler.
        browsed: Those with the user agent of a browser.
        probes: Those for paths that only scanners request.
        agents: The user agents, at most 32.
        paths: Checksums of the requested paths, at most 64.
    """

    requests: int = 0
    refused: int = 0
    banned: int = 0
    failed: int = 0
    succeeded: int = 0
    crawled: int = 0
    browsed: int = 0
    probes: int = 0
    agents: tuple[str, ...] = ()
    paths: tuple[int, ...] = ()

    def add(self, record: AccessRecord) -> None:
        """Count one logged request."""
        self.requests += 1
        if 400 <= record.status <= 499 and record.status != 429:
            self.failed += 1
        elif 100 <= record.status <= 399:
            self.succeeded += 1
        if _PROBES.search(record.path):
            self.probes += 1
        agent = intern(record.user_agent[:MAX_AGENT]) if record.user_agent else ""
        kind = _kind_of_agent(agent)
        self.crawled += kind == CRAWLER
        self.browsed += kind == PERSON
        if agent and len(self.agents) < MAX_AGENTS and agent not in self.agents:
            self.agents += (agent,)
        if len(self.paths) < MAX_PATHS:
            path = crc32(record.path.partition("?")[0].encode(errors="replace"))
            if path not in self.paths:
                self.paths += (path,)

    def classify(self) -> Classification:
        """Return the probable kind of the client, and why."""
        requests = max(self.requests, 1)
        share = self.failed / requests
        if self.probes >= min(_PROBED, requests) and self.probes >= _PROBED_SHARE * requests:
            return Classification(SCANNER, f"{self.probes} of {self.requests} requests probe for vulnerabilities")
        if share > 0.5 and len(self.paths) >= _MANY_PATHS:
            many = f"{len(self.paths)}{'+' if len(self.paths) == MAX_PATHS else ''}"
            return Classification(SCANNER, f"{share:.0%} of its requests fail, over {many} paths")
        if self.crawled > 0.5 * requests:
            return Classification(CRAWLER, "a crawler's user agent")
        if self.browsed > 0.5 * requests and share <= 0.5:
            return Classification(
                PERSON, f"a browser's user agent, {self.succeeded / requests:.0%} of its requests succeed"
            )
        why = "no browser's user agent" if share <= 0.5 else f"{share:.0%} of its requests fail"
        return Classification(PROGRAM, why)

    @property
    def many_agents(self) -> bool:
        """Whether this is probably a proxy or a NAT, because it has many user agents."""
        return len(self.agents) >= PROXY_AGENTS


class Clients:
    """The clients of a log by name, which is the key that a middleware counts them by.

    Args:
        header: The header field that identifies clients instead of the address; requests without it are identified by
            address. Values are shown as digests, because they may be secrets.

    Attributes:
        key: The key for a middleware; None for the address.
        client: Determines the address.
        tallies: The counts of each client by its name.
        requests: The number of requests added.
        without_header: Those without the header field.
        first_us: The time of the first request in microseconds of Unix time; 0 before that.
        last_us: The time of the last request.
    """

    def __init__(self, header: str | None = None) -> None:
        self.header = header
        self.key = None if header is None else web_keys.header(header)
        self.tallies: dict[str, ClientTally] = {}
        self.requests = self.without_header = self.first_us = self.last_us = 0
        self.client = client_ip()
        self._limiter = Limiter()

    def name(self, scope: Scope) -> str:
        """Return the name of the client of a request."""
        client, _ = self.client.locate(scope)
        return client if self.key is None else self.key.find(scope, self._limiter, client)

    def add(self, record: AccessRecord) -> tuple[str, ClientTally]:
        """Count a request; return the name and the counts of its client."""
        self.requests += 1
        self.without_header += self.header is not None and record.header(self.header) is None
        self.first_us = self.first_us or record.time_us
        self.last_us = max(self.last_us, record.time_us)
        name = self.name(scope_of(record))
        tally = self.tallies.get(name)
        if tally is None:
            tally = self.tallies[name] = ClientTally()
        tally.add(record)
        return name, tally
