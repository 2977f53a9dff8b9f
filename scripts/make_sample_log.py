"""Writes examples/demo/sample.log: two hours of a small site, made up, the same every time.

It also writes tests/ops/samples: some of the same requests as other servers log them, a file for each format.

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

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "examples" / "demo" / "sample.log"
SAMPLES: Final = ROOT / "tests" / "ops" / "samples"
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


def requests(draw: random.Random) -> list[Line]:
    """Return all requests in the order of time."""
    makers = (people, crawlers, heavy_client, exporter, scanners, login_attack, blocked, idle_connections)
    return sorted((line for make in makers for line in make(draw)), key=lambda line: line.second)


def sample() -> str:
    """Return the whole file."""
    draw = random.Random(SEED)
    lines = [str(line) for line in requests(draw)]
    for place in (1_000, 3_000):
        lines[place] = lines[place][: draw.randrange(20, 60)]
    return "\n".join(lines) + "\n"


# The same requests in other formats


NGINX_FORMAT: Final = (
    '$remote_addr - $remote_user [$time_local] $host "$request" $status $body_bytes_sent rt=$request_time '
    '"$http_referer" "$http_user_agent" key="$http_x_api_key"'
)
APACHE_FORMAT: Final = '%v %a %l %u [%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t] %m "%U%q" %>s %O %D "%{User-Agent}i"'
OWN_FIELDS: Final = {
    "time": "when", "client": "http.ip", "method": "http.verb", "path": "http.url", "status": "http.status",
    "user_agent": "http.agent", "duration_ms": "took_ms", "header:X-API-Key": "http.key",
}  # fmt: skip
HOST: Final = "www.example.org"
KEY: Final = "key-of-nobody"


def at(line: Line, zone_h: int = 0) -> datetime:
    """Return when a request came in, by the clock of a zone."""
    return (START + timedelta(seconds=int(line.second))).astimezone(timezone(timedelta(hours=zone_h)))


def clf(line: Line, zone_h: int = 0) -> str:
    """Return the time as most servers write it."""
    return at(line, zone_h).strftime("%d/%b/%Y:%H:%M:%S %z")


def asked(line: Line) -> tuple[str, str]:
    """Return method and path; a hyphen for each where there is no HTTP request."""
    method, _, rest = line.request.partition(" ")
    return (method, rest.rpartition(" ")[0]) if rest else ("-", "-")


def common(line: Line) -> str:
    """Write a line as Apache does by itself."""
    return str(line).rpartition(' "')[0].rpartition(' "')[0]


def vhost(line: Line) -> str:
    """Write a line with its virtual host, as Debian's Apache does, in a zone behind UTC."""
    return f"{HOST}:443 {line}".replace(clf(line), clf(line, -5))


def nginx(line: Line) -> str:
    """Write a line in the custom format of nginx above."""
    return (
        f'{line.client} - - [{clf(line, 1)}] {HOST} "{line.request}" {line.status} {line.size} rt=0.012 '
        f'"{line.referer}" "{line.agent}" key="{KEY}"'
    )


def apache(line: Line) -> str:
    """Write a line in the custom format of Apache above."""
    method, path = asked(line)
    moment = f"{at(line, 2):%d/%b/%Y:%H:%M:%S}.000 +0200"
    return f'{HOST} {line.client} - - [{moment}] {method} "{path}" {line.status} {line.size} 12000 "{line.agent}"'


def nginx_json(line: Line) -> str:
    """Write a line as nginx does with ``escape=json``."""
    method, path = asked(line)
    path, _, args = path.partition("?")
    return json.dumps({
        "time_iso8601": at(line, 1).isoformat(), "remote_addr": line.client, "request_method": method, "uri": path,
        "args": args, "status": str(line.status), "body_bytes_sent": str(line.size), "request_time": "0.012",
        "http_referer": line.referer, "http_user_agent": line.agent, "http_x_api_key": KEY, "host": HOST,
    })  # fmt: skip


def caddy(line: Line) -> str:
    """Write a line as Caddy does."""
    method, path = asked(line)
    headers = {"User-Agent": [line.agent], "Referer": [line.referer], "X-Api-Key": [KEY]}
    return json.dumps({
        "level": "info", "ts": at(line).timestamp(), "logger": "http.log.access.log0", "msg": "handled request",
        "request": {
            "remote_ip": line.client, "remote_port": "4711", "client_ip": line.client, "proto": "HTTP/1.1",
            "method": method, "host": HOST, "uri": path, "headers": headers,
        },
        "bytes_read": 0, "duration": 0.012, "size": line.size, "status": line.status,
    })  # fmt: skip


def traefik_json(line: Line) -> str:
    """Write a line as Traefik does in JSON."""
    method, path = asked(line)
    return json.dumps({
        "ClientHost": line.client, "ClientAddr": f"{line.client}:4711", "RequestMethod": method, "RequestPath": path,
        "RequestHost": HOST, "DownstreamStatus": line.status, "DownstreamContentSize": line.size,
        "Duration": 12_000_000, "StartUTC": f"{at(line):%Y-%m-%dT%H:%M:%S}.000000000Z",
        "request_User-Agent": line.agent, "request_Referer": line.referer, "request_X-Api-Key": KEY,
    })  # fmt: skip


def traefik(line: Line) -> str:
    """Write a line as Traefik does in the Common Log Format."""
    return f'{line} 17 "web@docker" "http://192.0.2.250:80" 12ms'


def balancer(line: Line) -> str:
    """Write a line as the Application Load Balancer does: the time in front is that of the answer."""
    method, path = asked(line)
    created = f"{at(line):%Y-%m-%dT%H:%M:%S}.000000Z"
    target = f"https://{HOST}:443{path}" if method != "-" else f"https://{HOST}:443-"
    return (
        f"h2 {created.replace('.000', '.012')} app/web/50dc6c495c0c9188 {line.client}:4711 192.0.2.250:80 "
        f'0.001 0.010 0.001 {line.status} {line.status} 34 {line.size} "{method} {target} HTTP/2.0" '
        f'"{line.agent}" TLS_AES_128_GCM_SHA256 TLSv1.3 arn:aws:elasticloadbalancing:eu-west-1:111122223333:'
        f'targetgroup/web/73e2d6bc24d8a067 "Root=1-58337262-36d228ad5d99923122bbe354" "{HOST}" '
        f'"arn:aws:acm:eu-west-1:111122223333:certificate/1" 0 {created} "forward" "-" "-" '
        f'"192.0.2.250:80" "{line.status}" "-" "-"'
    )


CLOUDFRONT_HEADER: Final = (
    "#Version: 1.0\n"
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
    "cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes "
    "time-taken"
)


def cloudfront(line: Line) -> str:
    """Write a line as CloudFront does."""
    method, path = asked(line)
    stem, _, query = path.partition("?")
    return "\t".join((
        f"{at(line):%Y-%m-%d}", f"{at(line):%H:%M:%S}", "FRA2-C1", str(line.size), line.client, method,
        "d111111abcdef8.cloudfront.net", stem, str(line.status), line.referer, line.agent.replace(" ", "%20"),
        query or "-", "-", "Miss", "SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==", HOST, "https", "34",
        "0.012",
    ))  # fmt: skip


def own(line: Line) -> str:
    """Write a line as nobody else does: JSON with the names above."""
    method, path = asked(line)
    return json.dumps({
        "when": round(at(line).timestamp() * 1_000), "took_ms": 12,
        "http": {
            "ip": line.client, "verb": method, "url": path, "status": line.status, "agent": line.agent, "key": KEY,
        },
    })  # fmt: skip


FORMATS: Final[dict[str, Callable[[Line], str]]] = {
    "combined.log": str, "common.log": common, "vhost_combined.log": vhost, "nginx_custom.log": nginx,
    "apache_custom.log": apache, "nginx.jsonl": nginx_json, "caddy.jsonl": caddy, "traefik.jsonl": traefik_json,
    "traefik.log": traefik, "load_balancer.log": balancer, "cloudfront.log": cloudfront, "own.jsonl": own,
}  # fmt: skip


def shown() -> list[Line]:
    """Return the requests of the small samples: some of all, and one that is no HTTP request."""
    found = requests(random.Random(SEED))
    odd = next(line for line in found if line.request == "-")
    return sorted([*found[::150], odd], key=lambda line: line.second)


def format_sample(name: str) -> str:
    """Return a file of the small samples."""
    lines = [FORMATS[name](line) for line in shown()]
    return "\n".join([CLOUDFRONT_HEADER, *lines] if name == "cloudfront.log" else lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(sample(), encoding="ascii", newline="\n")
    SAMPLES.mkdir(exist_ok=True)
    for name in FORMATS:
        (SAMPLES / name).write_text(format_sample(name), encoding="ascii", newline="\n")
