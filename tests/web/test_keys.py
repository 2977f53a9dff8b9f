"""Whom a rule counts: clients by address, and what requests say; and the key of a value, made without a request."""

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from fastapi import HTTPException
from fastapi.security import HTTPBasic, HTTPBearer
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.authentication import AuthCredentials, BaseUser, SimpleUser, UnauthenticatedUser
from starlette.requests import Request

from slidegate import (
    BanPolicy,
    Limiter,
    RateLimitMiddleware,
    Rule,
    client_ip,
    combine,
    cookie,
    header,
    path_param,
    query,
    user,
)
from slidegate.web.keys import Key

from ..asgi import PEER, hello, scope_of, send_scope


async def key_of(key: Any, limiter: Limiter | None = None, pattern: str = "*", **more: Any) -> str:
    """Return what a request is counted under by a key."""
    app = RateLimitMiddleware(hello, rules=[Rule(pattern, "1000/minute", key=key)], limiter=limiter)
    scope = scope_of(**more)
    await send_scope(app, scope)
    found: str = scope["slidegate"].decision.states[0].key
    return found


class Person(BaseUser):
    is_authenticated, display_name, identity = True, "Pat", "u-7"


class Lazy:
    @property
    def id(self) -> int:
        raise OSError("the database is away")


LINES = [(b"x-api-key", b"first"), *[(b"x-api-key", b"%d" % n) for n in range(99)], *[(b"x", b"y")] * 10_000]
API_KEY = header("X-API-Key")


def states(*users: object) -> list[dict[str, Any]]:
    return [{"state": {"user": one}} for one in users]


SAME: list[tuple[list[dict[str, Any]], str]] = [
    ([{"user": Person(), "auth": AuthCredentials()}, *states({"sub": "u-7"}, "u-7")], "user:u-7"),
    ([{"user": SimpleUser("pat")}], "user:pat"),
    (states(SimpleNamespace(id=42), 42), "user:42"),
    (states(UUID(int=7), SimpleNamespace(id=UUID(int=7))), "user:00000000-0000-0000-0000-000000000007"),
    ([{"user": UnauthenticatedUser()}, {}, {"state": {}}, *states("", {}, object(), *[Lazy()] * 3)], PEER),
]
"""Requests of one user, and its key."""


@pytest.mark.parametrize(("requests", "key"), SAME)
async def test_one_user_has_one_key_however_the_application_names_it(
    requests: list[Any], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter()
    assert {await key_of(user, limiter, **more) for more in requests} == {key}
    assert caplog.text.count("reading the user failed") == (key == PEER), "one line for all requests"


GIVEN = {"bearer": ["x", "X", "eyJh.b-_~+/=", "x y"], "basic": ["YW5uOng=", "YW!5uOng=", "YW5uOnk=", "YW5uOng"]}
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
    found = [key.find(scope, limiter, PEER) for scope in scopes]
    assert found == [limiter.key_for(key.of(wire)) for wire in (one, other)]
    people = [await accepted(wire) for wire in (one, other)]
    if None not in people:
        assert (found[0] == found[1]) is (people[0] == people[1])


async def test_other_credentials_are_kept_apart_and_what_is_no_base64_or_nothing_is_no_error() -> None:
    key, limiter = header("Authorization"), Limiter()
    texts = ["sk_AbC", "sk_abc", "Basic", "basic", "Basic x", "Basic x y", "Bearer x", "Digest x", "Bearer"]
    assert len({limiter.key_for(key.of(text)) for text in texts}) == len(texts)
    for text in ("", " ", "\t"):
        assert await key_of(key, limiter, headers=[(b"authorization", text.encode())]) == PEER


@given(st.text("Aa.:[]1x", max_size=8), st.text("Aa.:[]1x", max_size=8))
def test_hosts_that_an_application_takes_for_the_same_are_one_key(one: str, other: str) -> None:
    def read(host: str) -> str:  # as older Starlette does, and applications do
        return host.lower().partition(":")[0]

    key, limiter = header("Host"), Limiter()
    found = [key.find(scope_of(headers={"Host": host}), limiter, PEER) for host in (one, other)]
    assert found == [limiter.key_for(key.of(host)) if read(host) else PEER for host in (one, other)]
    if "[" not in (one + other):
        assert (found[0] == found[1]) is (read(one) == read(other))


@given(st.lists(st.text('";=\\ 0173dx\xa0', max_size=12), max_size=3))
def test_a_cookie_has_the_value_that_the_application_reads(texts: list[str]) -> None:
    key, limiter = cookie("d"), Limiter()
    scope = scope_of(headers=[(b"cookie", f"d={text}".encode("latin-1")) for text in texts])
    value = Request(scope).cookies.get("d")
    assert key.find(scope, limiter, PEER) == (limiter.key_for(key.of(value)) if value else PEER)


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

        def find(self, scope: Any, limiter: Limiter, client_key: str) -> str:
            value: bytes = scope[self.identity]
            return value.decode("latin-1")

    key = combine(Part("a"), Part("b"))
    found = [key.find({"a": pair[0], "b": pair[1]}, Limiter(), PEER) for pair in (first, more)]
    assert (found[0] == found[1]) is (first == more)


# -- the key of a value, without a request -----------------------------------------------------------------------------


OF_HEADER = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), min_size=1).filter(
    lambda text: text.strip(" \t") == text
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
IN_COOKIE = st.text("abcXYZ019-_.~!", min_size=1)
HALVES = st.builds("{}{}{}".format, st.text(max_size=40), st.characters(categories=["Cs"]), st.text(max_size=40))
"""Texts with half of a character, which neither UTF-8 nor JSON can hold."""


@settings(max_examples=30)
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
async def test_whatever_a_user_is_called_the_key_is_short_and_json_can_hold_it(name: str) -> None:
    limiter = Limiter()
    key = await key_of(user, limiter, state={"user": name})
    assert len(json.dumps(key, ensure_ascii=False).encode()) <= 66
    assert key == limiter.key_for(f"user:{name}")
    assert key != limiter.key_for(f"user:{name}x")
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
