"""Whom a rule counts: clients by address, behind proxies too, and what requests say; and the key of a value."""

import hmac
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import HTTPException
from fastapi.security import HTTPBasic, HTTPBearer
from granian.utils.proxies import wrap_asgi_with_proxy_headers
from hypercorn.middleware import ProxyFixMiddleware
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from slidegate import BanPolicy, ConfigurationError, Limiter, Networks, RateLimit, RateLimitMiddleware, Rule
from slidegate.networks.mcp import mcp_tool
from slidegate.networks.operators import Network, NetworkFile, network
from slidegate.web.charges import client_key, decision_of
from slidegate.web.client_ip import client_ip
from slidegate.web.keys import Key, combine, cookie, header, path_param, query, user

from ..asgi import PEER, hello, page, scope_of, send_scope, statuses
from ..drawing import examples
from ..hurry import at_once
from .middlewares import ASN, OTHER, TENCENT, FollowedFiles, end_of_looks, mmdb
from .stage import repeated


async def key_of(key: Any, limiter: Limiter | None = None, pattern: str = "*", **more: Any) -> str:
    """Return what a request is counted under by a key."""
    app = RateLimitMiddleware(hello, rules=[Rule(pattern, "1000/minute", key=key)], limiter=limiter)
    scope = scope_of(**more)
    await send_scope(app, scope)
    found: str = decision_of(HTTPConnection(scope)).states[0].key
    return found


LINES = [(b"x-api-key", b"first"), *[(b"x-api-key", b"%d" % n) for n in range(99)], *[(b"x", b"y")] * 10_000]
API_KEY = header("X-API-Key")


GIVEN = {
    "bearer": ["x", "X", "eyJh.b-_~+/=", "x y"],
    "basic": ["YW5uOng=", "YW!5uOng=", "YW5uOnk=", "YW5uOng", "YW5uOng=="],
}
AROUND = st.sampled_from(["", " ", "  ", "\t", "\x0b", "\x85", "\xa0"])


@st.composite
def authorizations(draw: st.DrawFn) -> str:
    """Return a value of Authorization in one of the spellings that servers let through."""
    scheme = draw(st.sampled_from(sorted(GIVEN)))
    spelled = "".join(draw(st.sampled_from([letter, letter.upper()])) for letter in scheme)
    return f"{spelled} {draw(AROUND)}{draw(st.sampled_from(GIVEN[scheme]))}{draw(AROUND)}"


async def accepted(wire: str) -> object:
    """Return whom FastAPI takes the client for; None if for nobody."""
    request = Request(scope_of(headers=[(b"authorization", wire.encode("latin-1"))]))
    with suppress(HTTPException):
        found = await HTTPBasic(auto_error=False)(request) or await HTTPBearer(auto_error=False)(request)
        return found and {**found.model_dump(), "scheme": None}
    return None


@given(authorizations(), authorizations(), st.sampled_from(["Authorization", "Proxy-Authorization"]))
async def test_credentials_that_fastapi_takes_for_the_same_are_one_key(one: str, other: str, name: str) -> None:
    key, limiter = header(name), Limiter()
    scopes = [scope_of(headers=[(name.lower().encode(), wire.encode("latin-1"))]) for wire in (one, other)]
    found = [key.read(scope, limiter, PEER) for scope in scopes]
    assert found == [limiter.key_for(key.of(wire)) for wire in (one, other)]
    people = [await accepted(wire) for wire in (one, other)]
    if None not in people:
        assert (found[0] == found[1]) is (people[0] == people[1])


SECRET = b"a secret of at least thirty-two bytes"
SEGMENT = st.text("ABwx01-_!=%~", max_size=3)


def signed(name: str) -> str:
    """Return a JWT."""
    parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256"}, {"sub": name})]
    signature = hmac.digest(SECRET, b".".join(parts), "sha256")
    return b".".join([*parts, urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def verified(token: str) -> str | None:
    """Return what a JWT says, verified as libraries do that decode as Python does; None if it is not valid."""
    text, _, signature = token.rpartition(".")
    with suppress(ValueError):
        if urlsafe_b64decode(signature + "==") == hmac.digest(SECRET, text.encode(), "sha256"):
            return text
    return None


@given(st.sampled_from(["ann", "bob"]), st.lists(st.tuples(st.integers(0, 200), SEGMENT), max_size=3))
def test_texts_that_a_library_verifies_as_one_token_are_one_key(name: str, insertions: list[tuple[int, str]]) -> None:
    token = text = signed(name)
    for at, inserted in insertions:
        text = text[: at % (len(text) + 1)] + inserted + text[at % (len(text) + 1) :]
    limiter, field = Limiter(), header("X-Token")
    for key, scope, other in (
        (header("Authorization"), {"Authorization": f"Bearer {token}"}, {"Authorization": f"bearer  {text}"}),
        (header("X-Token"), {"X-Token": token}, {"X-Token": text}),
        (cookie("jwt"), {"Cookie": f"jwt={token}"}, {"Cookie": f"jwt={text}"}),
    ):
        found = [key.read(scope_of(headers=fields), limiter, PEER) for fields in (scope, other)]
        assert verified(text) is None or found[0] == found[1]
    assert limiter.key_for(field.of(text)) == field.read(scope_of(headers={"X-Token": text}), limiter, PEER)


@pytest.mark.parametrize("last", range(64))
def test_spare_bits_of_a_signature_make_no_second_key(last: int) -> None:
    letters = ascii_uppercase + ascii_lowercase + digits + "-_"
    token = signed("ann")
    text = token[:-1] + letters[last]
    found = [header("X").read(scope_of(headers={"X": one}), Limiter(), PEER) for one in (token, text)]
    assert (found[0] == found[1]) is (verified(text) is not None)


@pytest.mark.parametrize("value", ["ey.a.b", "eyJ.a", "key.ab.ac", "eyJ.a=.b", "ey..", "ey....", "ey.\xff.a"])
def test_what_only_resembles_a_token_is_a_value_as_any_other(value: str) -> None:
    limiter, key = Limiter(), header("X")
    others = [value.replace("a", "A"), value.replace("b", "c"), f"{value}d.d"]
    found = {key.read(scope_of(headers=[(b"x", one.encode("latin-1"))]), limiter, PEER) for one in {value, *others}}
    assert len(found) == len({value, *others})


BYTES: list[Any] = [bytes, bytearray, memoryview]
EVERY_KEY = [
    *(client_ip(), client_ip(trusted=1), header("Authorization"), header("Host"), cookie("d"), query("q"), user),
    *(combine(client_ip(), cookie("d")), mcp_tool("export", validated=True)),
]
TOOLS = mcp_tool("export", validated=True)
SENT = {
    b"authorization": b"Bearer x",
    b"host": b"a",
    b"cookie": b"d=1",
    b"x-forwarded-for": b"198.51.100.7",
    b"mcp-protocol-version": b"2026-07-28",
    b"mcp-method": b"tools/call",
    b"mcp-name": b"export",
    b"origin": b"x",
    b"access-control-request-method": b"GET",
}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(SENT)), unique=True), st.data())
async def test_whatever_type_of_bytes_a_server_writes_the_keys_are_the_same(names: list[bytes], data: Any) -> None:
    """Names, values and the query, under each built-in key and condition."""
    kinds = st.sampled_from(BYTES)
    method = data.draw(st.sampled_from(["GET", "POST", "OPTIONS"]))
    rules = [Rule("*", "99/hour", key=key, name=f"r{at}") for at, key in enumerate(EVERY_KEY)]
    rules += [Rule("*", "99/hour", when=TOOLS.is_in("export"), name="in"), Rule("*", "9/m", when=TOOLS.is_older())]
    app = RateLimitMiddleware(hello, rules=rules, bans=BanPolicy("9/m", key=header("Host")))
    plain = [(name, SENT[name]) for name in names]
    odd = [(data.draw(kinds)(name), data.draw(kinds)(value)) for name, value in plain]
    asked = [(plain, b"q=1"), (odd, data.draw(kinds)(b"q=1"))]
    seen = []
    for headers, sent in asked:
        scope = scope_of(method=method, headers=headers, query_string=sent)
        await send_scope(app, scope)
        seen.append([(state.label, state.key) for state in decision_of(HTTPConnection(scope)).states])
    assert seen[0] == seen[1]


@given(st.text("Aa.:[]1x", max_size=8), st.text("Aa.:[]1x", max_size=8))
def test_hosts_that_an_application_takes_for_the_same_are_one_key(one: str, other: str) -> None:
    def read(host: str) -> str:  # as older Starlette does, and applications do
        return host.lower().partition(":")[0].removesuffix(".")  # the dot of the root (RFC 3986, section 3.2.2)

    key, limiter = header("Host"), Limiter()
    found = [key.read(scope_of(headers={"Host": host}), limiter, PEER) for host in (one, other)]
    assert found == [limiter.key_for(key.of(host)) if read(host) else PEER for host in (one, other)]
    if "[" not in (one + other):
        assert (found[0] == found[1]) is (read(one) == read(other))


@given(st.lists(st.text('";=\\ 0173dx\xa0', max_size=12), max_size=3))
@example(['"'])
def test_a_cookie_has_the_value_that_the_application_reads(texts: list[str]) -> None:
    key, limiter = cookie("d"), Limiter()
    scope = scope_of(headers=[(b"cookie", f"d={text}".encode("latin-1")) for text in texts])
    value = Request(scope).cookies.get("d")
    assert key.read(scope, limiter, PEER) == (limiter.key_for(key.of(value)) if value else PEER)


async def test_every_value_is_a_short_key_of_its_own_that_does_not_show_it() -> None:
    names = ["a" + "x" * 70, "b" + "x" * 70, "\u00fc" * 60, "\udcff" * 40, "\udcff"]
    values = ["secret", "other", "k" * 65_536]
    found = {await key_of(None, client=(name, 1)) for name in names}
    found |= {await key_of(API_KEY, headers={"X-API-Key": value}) for value in values}
    assert len(found) == len(names) + len(values)
    assert max(len(key.encode()) for key in found) <= 64
    assert "secret" not in str(found)
    assert await key_of(API_KEY, headers=LINES) == await key_of(API_KEY, headers=LINES[:1]), "the first line counts"


PAIRS = st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=2)


@given(PAIRS, PAIRS)
def test_different_combinations_never_meet_whatever_their_bytes(first: list[bytes], more: list[bytes]) -> None:
    class Part(Key):
        def __init__(self, name: str) -> None:
            self.identity = name

        def read(self, scope: Any, limiter: Limiter, client_key: str) -> str:
            value: bytes = scope[self.identity]
            return value.decode("latin-1")

    key = combine(Part("a"), Part("b"))
    found = [key.read({"a": pair[0], "b": pair[1]}, Limiter(), PEER) for pair in (first, more)]
    assert (found[0] == found[1]) is (first == more)


# -- the key of a value, without a request -----------------------------------------------------------------------------


OF_HEADER = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), min_size=1).filter(
    lambda text: text.strip(" \t") == text
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
IN_COOKIE = st.text("abcXYZ019-_.~!", min_size=1)
HALVES = st.builds("{}{}{}".format, st.text(max_size=40), st.characters(categories=["Cs"]), st.text(max_size=40))
"""Texts with half of a character, which neither UTF-8 nor JSON can hold."""


@settings(max_examples=examples(30))
@given(OF_HEADER, IN_COOKIE, ANY_TEXT)
async def test_a_middleware_makes_the_same_key_of_a_request_with_the_value(wire: str, crumb: str, text: str) -> None:
    limiter = Limiter()
    headers = [(b"cookie", f"a=1; device={crumb}".encode()), (b"x-api-key", wire.encode("latin-1"))]
    scope = {"headers": headers, "query_string": urlencode({"tenant": text}).encode()}
    field = header("X-API-Key")
    for key, made in (
        *((field, field.of(value)) for value in (wire, wire.encode("latin-1"), f" {wire}\t")),
        (cookie("device"), cookie("device").of(crumb)),
        (query("tenant"), query("tenant").of(text)),
    ):
        assert await key_of(key, limiter, **scope) == limiter.key_for(made)


@given(HALVES)
@example("\ud800\r")
async def test_whatever_a_user_is_called_the_key_is_short_and_json_can_hold_it(name: str) -> None:
    limiter = Limiter()
    key = await key_of(user, limiter, state={"user": name})
    assert len(json.dumps(key, ensure_ascii=False).encode()) <= 66
    assert key == limiter.key_for(f"user:{name}")
    assert key != limiter.key_for(f"user:{name}x")
    if name != name.rstrip():  # it was probably pasted so
        with pytest.raises(ConfigurationError, match="without blanks around it"):
            await limiter.ban(f"user:{name}", "1h")
        return
    assert (await limiter.ban(f"user:{name}", "1h")).key == key
    assert (await limiter.hit(f"user:{name}", "5/minute")).ban is not None
    assert await limiter.unban(key)


@pytest.mark.parametrize("url", ["memory://?max_keys=1", "lmdb"])
async def test_no_text_of_a_client_is_an_exception_in_a_store(url: str, tmp_path: Path) -> None:
    odd = "a\ud800\udfff"
    async with Limiter.from_url(url if url != "lmdb" else f"lmdb://{tmp_path}", deadline="30s") as limiter:
        rules = [
            Rule("*", "2/hour", key=lambda request: request.query_params["say"] and odd, name="said"),
            Rule("/t/{tenant}", "2/hour", key=path_param("tenant")),
            Rule("*", "2/hour", key=user, name="user"),
            Rule("*", "2/hour", key=combine(client_ip(), cookie("c"), query("say")), name="both"),
            Rule("*", "2/hour", name="peer"),
        ]
        app = RateLimitMiddleware(hello, rules=rules, limiter=limiter, bans=BanPolicy("1/hour", signals={404: 1}))
        scope = {"client": (odd, 1), "path": f"/t/{odd}", "state": {"user": odd}, "query_string": b"say=%ED%A0%80"}
        answers = [await send_scope(app, {**scope_of(headers={"cookie": "c=\xed\xa0\x80"}), **scope}) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]


# -- whose request it is, when proxies stand in between ----------------------------------------------------------------


def behind(*entries: str, name: str = "x-forwarded-for", trusted: Any = ("10.0.0.0/8",)) -> str | None:
    """Return the whole address of a client whose peer is a trusted proxy, with one header line an entry."""
    client = client_ip(trusted=trusted, header=name, ipv6_prefix=128)
    headers = [(name.lower().encode(), entry.encode("latin-1")) for entry in entries]
    key, address = client.locate(scope_of(client=("10.0.0.1", 1), headers=headers))
    return None if address is None else key.removesuffix("/128")


def test_the_client_is_read_from_the_fields_of_proxies(texts: Callable[..., None]) -> None:
    def client(field: str) -> str:
        name, colon, value = repeated(field).partition(":")
        entries = value.strip(" ").split(" | ") if colon else []
        return str(behind(*entries, name=name))

    texts(Path(__file__).with_name("clients.txt"), "> ", client)


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
async def test_a_client_is_its_address_however_a_server_reads_the_header(server: str, key: str, entry: str) -> None:
    found: list[str] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(client_key(HTTPConnection(scope)))
        await hello(scope, receive, send)

    listed = Networks(["192.0.2.0/24"])
    app = SERVERS_THAT_READ[server](RateLimitMiddleware(application, limits="9/hour", blocklist=listed))
    headers = {"X-Forwarded-For": f"192.0.2.1, {entry}", "Forwarded": f'for=192.0.2.1, for="{entry}"'}
    await send_scope(app, scope_of(client=("10.0.0.1", 1), headers=headers))
    assert found == [key]


# -- clients by network: addresses of one operator or one country share limits, conditions and bans --------------------


@pytest.mark.parametrize("network", ["10.1.2.3/32", "8.0.0.0/6", "192.168.0.0/15", "fd00::/8", "fe00::/8", "::1/128"])
@pytest.mark.parametrize("version", [4, 6])
def test_private_addresses_are_unknown_whatever_a_file_says(tmp_path: Path, network: str, version: int) -> None:
    if version == 4 and ":" in network:
        network = "0.0.0.0/1"
    found = NetworkFile(str(mmdb(tmp_path / "asn.mmdb", {network: OTHER, "203.0.0.0/16": TENCENT}, version)))
    private = "10.1.2.3", "192.168.0.1", "fd00::/64", "fe80::/64", "::1"
    assert {found.find(key).asn for key in private} == {None}
    assert found.find("203.0.113.1").asn == 132203
    held = ip_network(network)
    for key in ("9.9.9.9", "192.169.0.1", "fe00::/64"):
        address = ip_address(key.partition("/")[0])
        is_held = address.version == held.version and address in held
        assert found.find(key).asn == (64500 if is_held else None), key


def at_endpoint(**options: Any) -> dict[str, Any]:
    return {"app": Starlette(routes=[Route("/", RateLimit("9/hour", **options)(page))])}


PLACES: dict[str, Callable[[Network], dict[str, Any]]] = {
    "a key": lambda found: {"rules": [Rule("*", "9/hour", key=found)]},
    "a part of a key": lambda found: {"rules": [Rule("*", "9/hour", key=combine(client_ip(), found))]},
    "a condition": lambda found: {"rules": [Rule("*", "9/hour", when=found.is_in(64500))]},
    "a share": lambda found: {"rules": [Rule("*", concurrency=9, wait="1s", fair=found)]},
    "the key of all routes": lambda found: {"default_limits": "9/hour", "key": found},
    "a key at an endpoint": lambda found: at_endpoint(key=found),
    "a condition at an endpoint": lambda found: at_endpoint(when=found.is_in(64500)),
}
"""Where alone a file of operators may stand."""


@pytest.mark.parametrize("place", PLACES)
async def test_a_file_that_changes_is_followed_wherever_it_stands(place: str, tmp_path: Path) -> None:
    files = FollowedFiles(tmp_path)
    found = network(mmdb(tmp_path / "asn.mmdb", {"203.0.113.0/24": OTHER}))
    app = RateLimitMiddleware(**{"app": hello, **PLACES[place](found)})
    assert found.read({}, app.limiter, PEER) == "asn:64500"
    files.write("asn.mmdb", mmdb(tmp_path / "other.mmdb", {"203.0.113.0/24": TENCENT}).read_bytes())
    for _ in range(2):
        files.clock.advance("1s")
        assert await statuses(app, 1) == [200]
        end_of_looks()
    assert found.read({}, app.limiter, PEER) == "asn:132203"


async def test_a_file_that_is_cut_in_place_while_threads_look_up_ends_nothing(tmp_path: Path) -> None:
    path = mmdb(tmp_path / "asn.mmdb", ASN)
    found, seen = network(path), set()

    def ask(thread: int) -> None:
        for number in range(3_000):
            if (thread, number) == (0, 100):
                os.truncate(path, 10)
            seen.add(found.file._find(f"43.128.{number % 250}.1").asn)

    at_once(ask, 4)
    assert seen == {132203}


@settings(max_examples=examples(60))
@given(damage=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), min_size=1, max_size=40))
def test_a_damaged_file_is_refused_or_knows_less_and_raises_nothing(tmp_path_factory: Any, damage: Any) -> None:
    path = mmdb(tmp_path_factory.mktemp("damaged") / "asn.mmdb", ASN)
    content = bytearray(path.read_bytes())
    for at, byte in damage:
        content[at % len(content)] = byte
    path.write_bytes(content)
    try:
        found = network(path)
    except ConfigurationError:
        return
    for key in ("43.128.0.1", "101.32.5.5", "2402:4e00::/64", "8.8.8.8", "unknown-peer"):
        assert found.read({}, Limiter(), key).startswith(("asn:", "country:"))
