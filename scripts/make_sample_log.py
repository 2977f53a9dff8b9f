"""Writes examples/demo/sample.log: two hours of a small site, made up, the same every time.

Run it from anywhere: ``python scripts/make_sample_log.py``. The clients live in the address ranges that are reserved
for documentation (RFC 5737, RFC 3849); their behaviour is shaped like the logs of real sites:

* people read a few pages, with the files each page needs, and sometimes log in;
* crawlers and a feed reader come at an even pace;
* one heavy client works through the API: steadily, three times in a burst, never with an error;
* a report is exported three times an hour;
* scanners try hundreds of paths in a minute and find nothing;
* four addresses of one network try passwords, each too slowly for a limit on the address;
* some clients are on the blocklist, some lines are no HTTP request, and two were cut off.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

TARGET: Final = Path(__file__).resolve().parents[1] / "examples" / "demo" / "sample.log"
SEED: Final = 20_260_303
START: Final = datetime(2026, 3, 3, 10, 0, 0, tzinfo=UTC)
LENGTH_S: Final = 7_200

SITE: Final = "https://www.example.org"
SLUGS: Final = (
    "sliding-windows", "token-buckets", "retry-after", "fair-queues", "clock-steps", "ring-buffers",
    "backpressure", "idempotency", "cold-starts", "log-rotation",
)  # fmt: skip
ASSETS: Final = ("/static/site.css", "/static/site.js", "/favicon.ico")
BROWSERS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:135.0) Gecko/20100101 Firefox/135.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/133.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
)
PROBES: Final = (
    "/.env", "/.git/config", "/wp-login.php", "/xmlrpc.php", "/phpinfo.php", "/backup.zip", "/config.json", "/db.sql",
    "/server-status", "/vendor/phpunit/phpunit.xml", "/actuator/env", "/cgi-bin/test.cgi", "/admin/config.php",
)  # fmt: skip
HEAVY: Final = "198.51.100.77"
EXPORTER: Final = "198.51.100.60"
LOGIN_ATTACKERS: Final = ("203.0.113.16", "203.0.113.40", "203.0.113.74", "203.0.113.140")
SCANNERS: Final = ("203.0.113.200", "198.51.100.150")
BLOCKED: Final = ("198.51.100.200", "198.51.100.211", "2001:db8:bad::5")


class Line(NamedTuple):
    """One request to be, `second` counted from the start of the log."""

    second: float
    client: str
    request: str
    status: int
    size: int
    referer: str
    agent: str

    def __str__(self) -> str:
        moment = (START + timedelta(seconds=int(self.second))).strftime("%d/%b/%Y:%H:%M:%S +0000")
        return (
            f'{self.client} - - [{moment}] "{self.request}" {self.status} {self.size} "{self.referer}" "{self.agent}"'
        )


def get(
    second: float, client: str, path: str, agent: str, *, status: int = 200, size: int = 512, referer: str = "-"
) -> Line:
    """Return an ordinary GET."""
    return Line(second, client, f"GET {path} HTTP/1.1", status, size, referer, agent)


def people(draw: random.Random) -> Iterator[Line]:
    """Read three to eight pages, ten seconds to two minutes each."""
    clients = [f"192.0.2.{number}" for number in range(1, 61)] + [
        f"2001:db8:{number:x}::{number:x}" for number in range(16, 26)
    ]
    for client in clients:
        agent = draw.choice(BROWSERS)
        second = draw.uniform(0, LENGTH_S - 1_000)
        came_from = "-"
        for page in range(draw.randrange(3, 9)):
            path = "/" if page == 0 else f"/articles/{draw.choice(SLUGS)}"
            yield get(second, client, path, agent, size=draw.randrange(2_000, 9_000), referer=came_from)
            came_from = SITE + path
            for asset in ASSETS if page == 0 else ASSETS[:1]:
                yield get(
                    second + draw.uniform(0.1, 1.5),
                    client,
                    asset,
                    agent,
                    size=draw.randrange(300, 4_000),
                    referer=came_from,
                )
            second += draw.uniform(10, 120)
        if draw.random() < 0.2:
            for status in (401, 200):
                yield Line(second, client, "POST /login HTTP/1.1", status, 64, f"{SITE}/login", agent)
                second += draw.uniform(6, 20)


def crawlers(draw: random.Random) -> Iterator[Line]:
    """Come back at an even pace, whatever the hour."""
    for client, agent, paths, pause_s in (
        ("198.51.100.10", "ExampleBot/2.1 (+https://bot.example.com/)", [f"/articles/{slug}" for slug in SLUGS], 12),
        ("2001:db8:c::10", "ArchiveBot/1.0", ["/robots.txt", "/", *(f"/articles/{slug}" for slug in SLUGS)], 20),
        ("198.51.100.12", "FeedReader/5.2", ["/feed.xml"], 300),
    ):
        second = draw.uniform(0, pause_s)
        while second < LENGTH_S:
            yield get(second, client, draw.choice(paths), agent, size=draw.randrange(500, 9_000))
            second += draw.uniform(0.7 * pause_s, 1.3 * pause_s)


def heavy_client(draw: random.Random) -> Iterator[Line]:
    """Ask the API every six seconds, and three times, for half a minute, as fast as it can."""
    agent = "research-sync/3.4 python-httpx/0.28"
    second = 5.0
    while second < LENGTH_S:
        yield get(second, HEAVY, f"/api/search?q={draw.choice(SLUGS)}", agent, size=draw.randrange(200, 1_500))
        second += 6
    for start in (1_800, 3_900, 6_000):
        for number in range(420):
            query = f"/api/search?q={draw.choice(SLUGS)}&page={number}"
            yield get(start + number / 14, HEAVY, query, agent, size=draw.randrange(200, 1_500))


def exporter(draw: random.Random) -> Iterator[Line]:
    """Fetch everything every twenty minutes."""
    for second in range(300, LENGTH_S, 1_200):
        yield get(second + draw.uniform(0, 5), EXPORTER, "/export?full=1", "curl/8.12.1", size=1_204)


def scanners(draw: random.Random) -> Iterator[Line]:
    """Try hundreds of paths in a minute or less."""
    for client, start, length_s, count in ((SCANNERS[0], 2_400, 60, 520), (SCANNERS[1], 5_100, 24, 380)):
        for number in range(count):
            path = draw.choice(PROBES) if number % 3 else f"/{draw.choice(SLUGS)}/{draw.randrange(10**6)}.php"
            yield get(start + length_s * number / count, client, path, "Mozilla/5.0 zgrab/0.x", status=404, size=22)
        for number in range(4):
            yield Line(start - 2 + number / 2, client, "\\x16\\x03\\x01\\x02\\x00\\x01", 400, 0, "-", "-")


def login_attack(draw: random.Random) -> Iterator[Line]:
    """Try two passwords every eighty seconds from each address, for an hour."""
    for place, client in enumerate(LOGIN_ATTACKERS):
        second = 3_000.0 + 17 * place
        while second < 6_600:
            for pause_s in (draw.uniform(7, 10), draw.uniform(66, 76)):
                yield Line(second, client, "POST /login HTTP/1.1", 401, 64, "-", BROWSERS[1])
                second += pause_s


def blocked(draw: random.Random) -> Iterator[Line]:
    """Come from networks that the site does not talk to."""
    for client in BLOCKED:
        for _ in range(30):
            yield get(
                draw.uniform(0, LENGTH_S), client, draw.choice(("/", "/admin", *PROBES)), "-", status=403, size=100
            )


def idle_connections(draw: random.Random) -> Iterator[Line]:
    """Open a connection and say nothing until the server gives up."""
    for _ in range(6):
        yield Line(draw.uniform(0, LENGTH_S), f"192.0.2.{draw.randrange(100, 200)}", "-", 408, 0, "-", "-")


def sample() -> str:
    """Return the whole file."""
    draw = random.Random(SEED)
    makers = (people, crawlers, heavy_client, exporter, scanners, login_attack, blocked, idle_connections)
    lines = [
        str(line) for line in sorted((line for make in makers for line in make(draw)), key=lambda line: line.second)
    ]
    for place in (1_000, 3_000):
        lines[place] = lines[place][: draw.randrange(20, 60)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(sample(), encoding="ascii", newline="\n")
