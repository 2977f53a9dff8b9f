"""The cost of one request under realistic conditions: many configurations of slidegate, and its peers.

An application with ten routes is called directly, and other code runs between two requests. A request costs up to a
microsecond more directly after another application, so their order changes from round to round. The ratio of a row is
to what its peer adds.
"""

from functools import partial
from ipaddress import IPv4Network
from itertools import islice
from typing import Any, Final

from prometheus_client import CollectorRegistry

from slidegate import BanPolicy, Limiter, Networks, Rule, client_ip, header
from slidegate.ops.statistics import Statistics
from slidegate.prometheus import PrometheusMetrics

from . import rounds
from .apps import ONE, PLENTY, USUAL, App, api_key_of_peer, asgi_ratelimit, bare, fastapi, limited, messages
from .rounds import Row
from .traffic import TEMPLATES, Traffic, client_of

BARE: Final = "bare Starlette"
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
FASTAPI: Final = "bare FastAPI"
WEBSOCKET: Final = "bare websocket"
BARE_10: Final = "bare Starlette, 10 routes"
BARE_1000: Final = "bare Starlette, 1,000 routes"
BY_ROUTE: Final = "10 routes, default_limits"

PROXIED: Final = Traffic(proxy="10.0.0.1")
NEW_PATHS: Final = Traffic(new_paths=True)
KEYS: Final = Traffic(keys=100_000)

KEY: Final = header("X-API-Key")
# A thousand networks, no two of which are adjacent.
NETWORKS: Final = [str(network) for network in islice(IPv4Network("198.18.0.0/15").subnets(new_prefix=26), 0, 2_000, 2)]
PROXIES: Final[dict[str, Any]] = {"client": client_ip(trusted=["10.0.0.0/8", "127.0.0.0/8"])}
POLICY: Final[dict[str, Any]] = {"bans": BanPolicy(after="20/10m", duration="1h", factor=4, longest="7d")}
EVERYBODY: Final = [client_of(number) for number in range(USUAL.clients)]
BLOCKLIST: Final[dict[str, Any]] = {"blocklist": Networks(NETWORKS)}


def ours(traffic: Traffic = USUAL, status: int = 200, **options: Any) -> App:
    """Return an application behind our middleware; without rules or limits in the options, with one limit."""
    if "rules" not in options and "default_limits" not in options:
        options.setdefault("limits", PLENTY)
    return App(partial(limited, **options), traffic, status)


def new_paths(routes: int = 10, **options: Any) -> App:
    return ours(NEW_PATHS, 429, routes=routes, **options)


def one_rule(traffic: Traffic = USUAL, **options: Any) -> App:
    return ours(traffic, rules=[Rule("*", PLENTY, **options)])


def everything(**options: Any) -> App:
    """Return an application with five rules, of which the first that matches counts a request, and all lists."""
    paths = ("/api/{rest:path}", "/items/{id}", "/export/{id}")
    login = Rule("/login", PLENTY, methods=["POST"], final=True)
    rules = [login, *(Rule(path, PLENTY, final=True) for path in paths), Rule("*", PLENTY)]
    return ours(PROXIED, rules=rules, **PROXIES, **POLICY, **BLOCKLIST, **options)


def with_prometheus(limiter: Limiter) -> PrometheusMetrics:
    return PrometheusMetrics(limiter, registry=CollectorRegistry())


def to_peer(name: str, app: App, target: str = "", peer: str = PEER) -> Row:
    return Row(name, app, BARE, peer, BARE, target)


def with_traffic(name: str, app: App, words: str, **options: Any) -> list[Row]:
    """Return a row that is compared under its own traffic, and what it is compared with."""
    bare_so, peer_so = f"{BARE}, {words}", f"{PEER}, {words}"
    return [
        Row(name, app, bare_so, peer_so, bare_so),
        Row(bare_so, App(bare, app.traffic)),
        Row(peer_so, App(partial(asgi_ratelimit, **options), app.traffic), bare_so),
    ]


def at_endpoint(name: str, target: str = "") -> Row:
    return Row(name, App(partial(fastapi, limit=name)), FASTAPI, "fastapi-limiter", FASTAPI, target)


def refused_at_endpoint(name: str, target: str = "") -> Row:
    app = App(partial(fastapi, limit=name, limits=ONE), USUAL, 429)
    return Row(f"{name}, refused", app, FASTAPI, "fastapi-limiter, refused", FASTAPI, target)


TABLES: Final = {
    "Admitted: microseconds added, and the ratio to what asgi-ratelimit adds": [
        Row(BARE, App(bare)),
        to_peer("default", ours(), "≤1.05; ≤0.9"),
        to_peer("ban policy", ours(**POLICY), "≤1.1"),
        to_peer("blocklist", ours(**BLOCKLIST), "≤1.1"),
        to_peer("trusted proxies", ours(PROXIED, **PROXIES), "≤1.2"),
        to_peer("everything", everything(), "≤1.25; ≤1.2", FIVE),
        to_peer("everything, statistics", everything(attach=Statistics.of), "≤1.75; ≤1.6", FIVE),
        to_peer("everything, Prometheus", everything(attach=with_prometheus), "≤1.75", FIVE),
        to_peer("header key", one_rule(Traffic(keys=256), key=KEY), "≤1.4"),
        *with_traffic("header key, 100,000 values", one_rule(KEYS, key=KEY), "100,000 values", who=api_key_of_peer),
        to_peer("count_if", one_rule(count_if=lambda status: status == 200), "≤1.5"),
        to_peer("concurrency", one_rule(concurrency=100), "≤2.6"),
        to_peer("key function", one_rule(key=lambda request: request.client.host), "≤2.0 of default's"),
        to_peer("condition", one_rule(when=lambda request: True), "≤2.0 of default's"),
        to_peer("shadow", ours(rules=[Rule("*", PLENTY), Rule("*", PLENTY, shadow=True)]), "≤2.2 of default's"),
        to_peer("idle wait", one_rule(wait="200ms"), "≤1.7 of default's"),
        to_peer("ten rules", ours(rules=[Rule(template, PLENTY) for template in TEMPLATES])),
        *with_traffic("10,000 clients, 1,000 paths", ours(Traffic(clients=10_000, paths=1_000)), "10,000 clients"),
        Row(PEER, App(asgi_ratelimit), BARE),
        to_peer(FIVE, App(partial(asgi_ratelimit, patterns=("^/login", "^/api/", "^/items/", "^/export/", "^/")))),
    ],
    "Admitted: microseconds more than default": [
        Row("two windows", ours(limits=f"{PLENTY}; 2000000000/day"), "default", target="≤3.5"),
        Row("an address banned", ours(banned=["192.0.2.7"]), "default", target="≤1.2"),
        Row("a network banned", ours(banned=["192.0.2.0/24"]), "default", target="≤1.2"),
    ],
    "Refused: microseconds more than the answer of the bare application": [
        Row("refused by a limit", ours(USUAL, 429, limits=ONE), BARE, target="≤-1"),
        Row("refused by a ban", ours(USUAL, 403, banned=EVERYBODY), BARE, target="≤0"),
    ],
    "A path never seen before: the ratio to ten routes, or to what further routes add to Starlette": [
        Row("10 routes, refused", new_paths(limits=ONE)),
        Row("1,000 routes, refused", new_paths(1_000, limits=ONE), "", "10 routes, refused", target="≤1.3"),
        Row(BARE_10, App(bare, NEW_PATHS)),
        Row(BARE_1000, App(partial(bare, routes=1_000), NEW_PATHS)),
        Row(BY_ROUTE, new_paths(default_limits=ONE)),
        Row("1,000 routes, default_limits", new_paths(1_000, default_limits=ONE), BY_ROUTE, BARE_1000, BARE_10, "≤1.0"),
    ],
    "A limit at an endpoint of FastAPI: the ratio to what fastapi-limiter adds": [
        Row(FASTAPI, App(fastapi)),
        at_endpoint("dependency", "≤0.9"),
        at_endpoint("decorator", "≤0.7"),
        at_endpoint("fastapi-limiter"),
        refused_at_endpoint("dependency", "≤1.0"),
        refused_at_endpoint("decorator", "≤1.1"),
        refused_at_endpoint("fastapi-limiter"),
    ],
    "A message on a websocket: microseconds more than without a middleware": [
        Row(WEBSOCKET, partial(messages, False)),
        Row("a message with a limit", partial(messages, True), WEBSOCKET, target="≤4.5"),
    ],
}
APPS: Final = {row.name: row.candidate for rows in TABLES.values() for row in rows if isinstance(row.candidate, App)}
"""The applications by the name of their row."""
main: Final = partial(rounds.main, tables=TABLES)
