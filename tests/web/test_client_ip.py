"""Whose request it is, when proxies stand in between."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from granian.utils.proxies import wrap_asgi_with_proxy_headers
from hypercorn.middleware import ProxyFixMiddleware
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, client_ip, client_key
from slidegate.testing import FakeClock
from slidegate.web.headers import MAX_FIELD

from ..asgi import hello, scope_of, send_scope


def behind(*entries: str, name: str = "x-forwarded-for", trusted: Any = ("10.0.0.0/8",)) -> str | None:
    """Return the whole address of a client whose peer is a trusted proxy, with one header line an entry."""
    client = client_ip(trusted=trusted, header=name, ipv6_prefix=128)
    headers = [(name.lower().encode(), entry.encode("latin-1")) for entry in entries]
    key, address = client.locate(scope_of(client=("10.0.0.1", 1), headers=headers))
    return None if address is None else key.removesuffix("/128")


def test_the_client_is_read_from_the_fields_of_proxies(texts: Callable[..., None]) -> None:
    def client(field: str) -> str:
        name, colon, value = field.partition(":")
        entries = value.strip(" ").split(" | ") if colon else []
        return str(behind(*entries, name=name))

    texts(Path(__file__).with_name("clients.txt"), "> ", client)


def test_a_huge_header_costs_no_more_than_its_right_end() -> None:
    for name, honest in (("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=203.0.113.9")):
        for flood in ("1.2.3.4," * 10_000, '"' * 65_536, ";" * 65_536, "\\" * 65_536, "," * 65_536):
            assert behind(flood + "," + honest, name=name) == "203.0.113.9"
        many = [*["6.6.6.6"] * 10_000, honest]
        assert behind(*many, name=name) == "203.0.113.9"
    assert behind("x" * MAX_FIELD + "203.0.113.9") == "10.0.0.1"


HOPS = st.lists(st.integers(1, 254).map(lambda n: f"10.0.0.{n}"), max_size=3)
ATTACK = st.lists(
    st.text(alphabet=st.characters(min_codepoint=1, max_codepoint=255), max_size=40)
    | st.sampled_from(['for="', "for=10.0.0.9", '",', "for=6.6.6.6;", "\\", '"\\"', "10.0.0.9", "[::1", ";,;"]),
    max_size=6,
)


# What a proxy copies from the request into its own element, as a quoted string: RFC 9110, section 5.6.4.
COPIED = st.text(alphabet='a\\",;= \t', max_size=6).map(lambda text: re.sub(r'([\\"])', r"\\\1", text))


@given(ATTACK, HOPS, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_whatever_an_attacker_writes_left_of_the_trusted_hops_the_client_is_the_same(
    attack: list[str], hops: list[str], own_line: bool, forwarded: bool, counted: bool, data: st.DataObject
) -> None:
    """Whether the proxies are known by their networks or counted."""
    appended = ["203.0.113.9", *hops]
    trusted: Any = len(appended) if counted else ["10.0.0.0/8"]
    if forwarded:
        appended = [f'for="{node}";proto=https;host="{data.draw(COPIED)}"' for node in appended]
    written = ",".join(attack)
    lines = [written, ", ".join(appended)] if own_line else [f"{written}, {', '.join(appended)}"]
    assert behind(*lines, name="forwarded" if forwarded else "x-forwarded-for", trusted=trusted) == "203.0.113.9"


# -- servers that read the header themselves ---------------------------------------------------------------------------


SPELLED = {
    "203.0.113.9": ["203.0.113.9", "203.0.113.9:4711", "203.0.113.9:", "::ffff:203.0.113.9", "[::FFFF:cb00:7109]:1"],
    "2001:db8::/64": ["2001:db8::1", "2001:DB8:0:0::2", "[2001:db8::1]", "[2001:db8::1]:4711", "2001:db8::1%eth0"],
}
SERVERS_THAT_READ: dict[str, Callable[[ASGIApp], Any]] = {
    "uvicorn": lambda app: ProxyHeadersMiddleware(app, "10.0.0.1"),
    "hypercorn": lambda app: ProxyFixMiddleware(app, trusted_hops=1),
    "hypercorn, Forwarded": lambda app: ProxyFixMiddleware(app, mode="modern", trusted_hops=1),
    "granian": lambda app: wrap_asgi_with_proxy_headers(app, trusted_hosts=["10.0.0.1"]),
}


@pytest.mark.parametrize("server", SERVERS_THAT_READ)
@pytest.mark.parametrize(("key", "entry"), [(key, entry) for key, spelled in SPELLED.items() for entry in spelled])
async def test_a_client_is_its_address_however_a_server_takes_it_from_the_header(
    server: str, key: str, entry: str
) -> None:
    found: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(client_key(HTTPConnection(scope)))
        await hello(scope, receive, send)

    listed = Networks(["192.0.2.0/24"])
    app = SERVERS_THAT_READ[server](RateLimitMiddleware(application, limits="9/hour", blocklist=listed))
    headers = {"X-Forwarded-For": f"192.0.2.1, {entry}", "Forwarded": f'for=192.0.2.1, for="{entry}"'}
    await send_scope(app, scope_of(client=("10.0.0.1", 1), headers=headers))
    assert found == [key]


# -- requests for which the server names no peer -----------------------------------------------------------------------


ON_A_PORT = ("app.test", 443)
ON_A_SOCKET = ("/run/app.sock", None)
LISTED, ALLOWED, OTHER = "192.0.2.7", "192.0.2.8", "198.51.100.9"
AMOUNT = 2

CLIENTS = st.sampled_from([None, LISTED, ALLOWED, OTHER])
SERVERS = st.sampled_from([None, ON_A_SOCKET, ON_A_PORT, ["::1", 8000], ("192.0.2.1", "8000"), ("", 0)])
SCOPES = st.tuples(CLIENTS, SERVERS, st.booleans(), CLIENTS)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "blocklist": st.sampled_from([Networks([LISTED]), Networks([])]),
        "allowlist": st.just(Networks([ALLOWED])),
        "bans": st.sampled_from([BanPolicy("100/10m", "1h"), []]),
        "client": st.just(client_ip(trusted=["unix"])),
    },
)


class Model:
    """The ruling in a few lines: who is refused as gone, and which bucket counts everybody else."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.looks_at_peers = "blocklist" in options or bool(options.get("bans"))
        self.named = False
        self.counts: Counter[str] = Counter()

    def status(self, client: str | None, server: Any, forwarded: str | None) -> int:
        self.named = self.named or client is not None
        on_a_port = server is not None and server[1] is not None
        if client is None and self.looks_at_peers and self.named and on_a_port:
            return 403
        if client is None and "client" in self.options and not on_a_port:
            client = forwarded
        if client == ALLOWED and "allowlist" in self.options:
            return 200
        if client == LISTED and self.options.get("blocklist"):
            return 403
        bucket = client or "unknown-peer"
        self.counts[bucket] += self.counts[bucket] < AMOUNT or 10
        return 200 if self.counts[bucket] <= AMOUNT else 429


@given(OPTIONS, st.lists(SCOPES, max_size=12))
async def test_a_request_without_a_peer_is_one_bucket_unless_its_connection_must_be_gone(
    options: dict[str, Any], connections: list[tuple[str | None, Any, bool, str | None]]
) -> None:
    limiter, model = Limiter(MemoryStore(clock=FakeClock())), Model(options)
    app = RateLimitMiddleware(hello, limits=f"{AMOUNT}/hour", limiter=limiter, **options)
    for client, server, mentioned, forwarded in connections:
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        scope = scope_of(client=client and (client, 1), server=server, headers=headers)
        if client is None and not mentioned:
            del scope["client"]
        assert (await send_scope(app, scope)).status == model.status(client, server, forwarded)
    assert ("SG109" in [finding.code for finding in app.findings]) is (model.counts["unknown-peer"] > 0)
