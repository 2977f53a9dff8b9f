"""Keys that look elsewhere: cookies, the query, the path, the user, and several at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.authentication import AuthCredentials, BaseUser, SimpleUser, UnauthenticatedUser

from slidegate import (
    ConfigurationError,
    Limiter,
    RateLimitMiddleware,
    Rule,
    client_ip,
    combine,
    cookie,
    everyone,
    header,
    path_param,
    query,
    user,
)

from ...asgi import PEER, call, hello, scope_of, send_scope, statuses


async def keys(rule: Rule, *scopes: Any) -> list[str]:
    app = RateLimitMiddleware(hello, rules=[rule])
    found = []
    for scope in scopes:
        await send_scope(app, scope)
        found.append(scope["slidegate"].decision.states[0].key)
    return found


async def test_a_cookie_is_the_one_that_the_application_sees() -> None:
    rule = Rule("*", "9/hour", key=cookie("session"))
    lines = ["session=abc", "a=b; session=abc", "session=xyz; session=abc", "session=", "other=abc", ""]
    first, second, doubled, *missing = await keys(rule, *(scope_of(headers={"Cookie": line}) for line in lines))
    assert first == second == doubled
    assert first.startswith("cookie:session#")
    assert "abc" not in first
    assert missing == [PEER] * 3


async def test_a_query_parameter_is_the_one_that_the_application_sees() -> None:
    rule = Rule("*", "9/hour", key=query("token"))
    strings = [b"token=abc", b"a=1&token=x&token=abc", b"token=", b"", b"\xff\xfe=%ff"]
    first, doubled, *missing = await keys(rule, *(scope_of(query_string=string) for string in strings))
    assert first == doubled
    assert first.startswith("query:token#")
    assert missing == [PEER] * 3


async def test_a_path_parameter_is_found_by_the_rules_own_pattern() -> None:
    rule = Rule("/tenants/{tenant}/{rest:path}", "9/hour", key=path_param("tenant"))
    first, same, other = await keys(
        rule, scope_of("/tenants/a/x"), scope_of("/tenants/a/y/z"), scope_of("/tenants/b/x")
    )
    assert first == same != other


@pytest.mark.parametrize(
    ("path", "spellings"),
    [
        ("/otp/{uid:int}", ["/otp/1", "/otp/01", "/otp/001"]),
        ("/o/{uid:uuid}", ["/o/0f0f0f0f-0000-0000-0000-0000000000aa", "/o/0F0F0F0F-0000-0000-0000-0000000000AA"]),
    ],
)
async def test_a_path_parameter_counts_the_value_and_not_its_spelling(path: str, spellings: list[str]) -> None:
    rule = Rule(path, "9/hour", key=path_param("uid"))
    found = await keys(rule, *map(scope_of, spellings))
    assert len(set(found)) == 1
    assert found[0].startswith("path:uid#")


async def test_a_path_parameter_that_its_convertor_refuses_counts_as_it_is_written() -> None:
    rule = Rule("/o/{uid:int}", "9/hour", key=path_param("uid"))
    (found,) = await keys(rule, scope_of("/o/" + "9" * 5_000))
    assert found.startswith("path:uid#")


async def test_a_bare_client_ip_in_a_key_is_the_client_that_the_middleware_finds() -> None:
    for key, ends in (
        (combine(client_ip(), header("X-Tenant")), None),
        (client_ip(), "203.0.113.1"),
        (client_ip(ipv4_prefix=24), "203.0.113.0/24"),
        (header("X-None", fallback=client_ip()), "203.0.113.1"),
    ):
        app = RateLimitMiddleware(hello, client=client_ip(trusted=["10.0.0.0/8"]), rules=[Rule("*", "9/hour", key=key)])
        found = []
        for number in (1, 2):
            headers = {"X-Forwarded-For": f"203.0.113.{number}", "X-Tenant": "t"}
            scope = scope_of(client=("10.0.0.1", 1), headers=headers)
            await send_scope(app, scope)
            found.append(scope["slidegate"].decision.states[0].key)
        assert (found[0] == found[1]) is (ends == "203.0.113.0/24")
        assert ends in (None, found[0])


@pytest.mark.parametrize(
    ("peer", "key"), [(None, "unknown-peer"), ("testclient", "peer:testclient"), ("2001:db8::1", "2001:db8::/48")]
)
async def test_a_prefix_is_cut_where_there_is_an_address(peer: str | None, key: str) -> None:
    scope = scope_of(client=(peer, 1) if peer else None, server=None)
    assert await keys(Rule("*", "9/hour", key=client_ip(ipv6_prefix=48)), scope) == [key]


async def test_many_clients_are_cut_in_bounded_memory() -> None:
    key = client_ip(ipv4_prefix=24)
    for number in range(5_000):
        key.find({}, Limiter(), f"10.0.{number // 250}.{number % 250}")
    assert len(key._cut) <= 4_096


@pytest.mark.parametrize("path", ["*", "/tenants/{tenand}", "/fixed"])
def test_a_path_parameter_that_the_path_does_not_have_is_an_error(path: str) -> None:
    for key in (path_param("tenant"), combine(client_ip(), path_param("tenant"))):
        with pytest.raises(ConfigurationError, match=r"has no parameter 'tenant'"):
            Rule(path, "9/hour", key=key)


class Person(BaseUser):
    is_authenticated = True

    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def display_name(self) -> str:
        return "Pat"

    @property
    def identity(self) -> str:
        return self._identity


class Row:
    id = 42


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"user": Person("u-7"), "auth": AuthCredentials()}, "user:u-7"),
        ({"user": SimpleUser("pat")}, "user:pat"),
        ({"user": UnauthenticatedUser()}, PEER),
        ({"state": {"user": Row()}}, "user:42"),
        ({"state": {"user": "ann"}}, "user:ann"),
        ({"state": {"user": 7}}, "user:7"),
        ({"state": {"user": ""}}, PEER),
        ({"state": {"user": UUID(int=7)}}, "user:00000000-0000-0000-0000-000000000007"),
        ({"state": {"user": {"sub": "u-9"}}}, "user:u-9"),
        ({"state": {"user": SimpleNamespace(id=UUID(int=7))}}, "user:00000000-0000-0000-0000-000000000007"),
        ({"state": {"user": {}}}, PEER),
        ({"state": {"user": object()}}, PEER),
        ({"state": {}}, PEER),
        ({}, PEER),
    ],
)
async def test_the_user_is_whoever_is_logged_in(more: dict[str, Any], key: str) -> None:
    assert await keys(Rule("*", "9/hour", key=user), scope_of(**more)) == [key]


async def test_a_user_that_cannot_be_named_is_counted_by_address(caplog: pytest.LogCaptureFixture) -> None:
    class Lazy:
        @property
        def id(self) -> int:
            raise OSError("the database is away")

    assert await keys(Rule("*", "9/hour", key=user), scope_of(state={"user": Lazy()})) == [PEER]
    assert "cannot be named" in caplog.text


async def test_a_user_of_any_name_is_a_short_key() -> None:
    (key,) = await keys(Rule("*", "9/hour", key=user), scope_of(state={"user": "x" * 300}))
    assert len(key.encode()) <= 64


async def test_combined_keys_count_each_combination() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", key=combine(client_ip(), header("X-Tenant")))])
    for tenant, peer in (("a", PEER), ("b", PEER), ("a", "192.0.2.1")):
        assert await statuses(app, 2, headers={"X-Tenant": tenant}, client=(peer, 1)) == [200, 429]


@given(
    first=st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=2),
    more=st.lists(st.binary(min_size=1, max_size=4), min_size=2, max_size=2),
)
def test_different_combinations_never_meet_whatever_their_bytes(first: list[bytes], more: list[bytes]) -> None:
    class Part:
        def __init__(self, name: str) -> None:
            self.identity = name

        def find(self, scope: Any, limiter: Limiter, client_key: str) -> str:
            value: bytes = scope[self.identity]
            return value.decode("latin-1")

    limiter = Limiter()
    key = combine(Part("a"), Part("b"))
    found = [key.find({"a": pair[0], "b": pair[1]}, limiter, PEER) for pair in (first, more)]
    assert (found[0] == found[1]) is (first == more)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cookie(""),
        lambda: cookie("a b"),
        lambda: cookie(5),  # type: ignore[arg-type]
        lambda: query(""),
        lambda: query(None),  # type: ignore[arg-type]
        lambda: path_param(""),
        lambda: cookie("a", fallback="ip"),  # type: ignore[arg-type]
        lambda: combine(everyone),
        lambda: combine(),
        lambda: combine(everyone, lambda request: "k"),  # type: ignore[arg-type]
    ],
)
def test_keys_that_cannot_work_are_refused_at_construction(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


async def test_missing_values_never_open_a_hole() -> None:
    for key in (cookie("c"), query("q"), header("h"), user, combine(cookie("c"), query("q"))):
        app = RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", key=key)])
        assert [(await call(app)).status for _ in range(3)] == [200, 200, 429]
