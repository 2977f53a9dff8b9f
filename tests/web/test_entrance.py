"""A middleware asks once who the client of a request is: where it comes in, whatever others change in it afterwards."""

from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from starlette.authentication import SimpleUser
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import slidegate
from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, client_ip, client_key, header, strike, user
from slidegate.testing import FakeClock
from slidegate.web.client_ip import ClientAddress
from slidegate.web.keys import Combined, Key

from ..asgi import PEER, call, scope_of, send_scope
from ..drawing import examples
from .middlewares import Listener, starlette

VICTIM, PROXY = "198.51.100.7", "10.0.0.1"
PROXIES = ["10.0.0.0/8"]

# -- others inside change the scope ------------------------------------------------------------------------------------

CLIENTS = {
    "the peer": client_ip(),
    "networks": client_ip(ipv4_prefix=24),
    "proxies": client_ip(trusted=PROXIES),
    "one proxy": client_ip(trusted=1),
    "a socket": client_ip(trusted=["unix"]),
}
KEYS: dict[str, Key | None] = {
    "none": None,
    "client": client_ip(),
    "network": client_ip(ipv4_prefix=24),
    "proxies": client_ip(trusted=PROXIES),
    "header": header("X-API-Key"),
    "cookie": slidegate.cookie("device"),
    "query": slidegate.query("token"),
    "user": user,
    "both": slidegate.combine(client_ip(trusted=PROXIES), header("X-API-Key")),
    "user and header": slidegate.combine(user, header("X-API-Key")),
}
FORGED = [(b"x-forwarded-for", VICTIM.encode()), (b"x-api-key", b"other"), (b"cookie", b"device=other")]
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "client": st.sampled_from([(VICTIM, 1), [VICTIM, 1], (PROXY, 1), None, ("unix", 0)]),
        "headers": st.sampled_from([FORGED, [], FORGED[:1]]),
        "query_string": st.just(b"token=other"),
        "user": st.sampled_from([SimpleUser("ann"), None]),
        "state": st.sampled_from([{"user": "ann"}, {}]),
        "server": st.sampled_from([None, ("127.0.0.1", 80), ("/run/app.sock", None)]),
        "path": st.just("/elsewhere"),
        "method": st.just("POST"),
        "root_path": st.just("/v1"),
    },
)
REQUESTS = st.fixed_dictionaries({
    "client": st.sampled_from([(PEER, 1), (PROXY, 1), None]),
    "server": st.sampled_from([("127.0.0.1", 80), ("/run/app.sock", None)]),
    "headers": st.sampled_from([
        [],
        [(b"x-forwarded-for", PEER.encode()), (b"x-api-key", b"k"), (b"cookie", b"device=d")],
        [(b"x-forwarded-for", b"192.0.2.1, " + PEER.encode())],
    ]),
    "query_string": st.sampled_from([b"", b"token=t"]),
})  # fmt: skip
WAYS = st.sampled_from(["status", "refused", "by hand", "by hand, later"])


def changing(app: ASGIApp, changes: dict[str, Any], how: str) -> ASGIApp:
    """Return a middleware that changes fields of each scope: in place, within a copy, or lists in place as well."""

    async def changed(scope: Scope, receive: Receive, send: Send) -> None:
        own = {**scope} if how == "a copy" else scope
        for name, value in deepcopy(changes).items():
            if name == "headers" and how == "lists":
                own["headers"][:] = value
            else:
                own[name] = value
        await app(own, receive, send)

    return changed


def expected(key: Any, entrance: Scope, moment: Scope, client: str, limiter: Limiter) -> str | None:
    """Return what a policy bans: addresses of the entrance, anything else of the moment; None for nobody."""
    if key is None:
        return client
    if isinstance(key, Combined):
        parts = [expected(part, entrance, moment, client, limiter) for part in key.keys]
        if None in parts:
            return None
        known = iter(parts)
        return Combined(tuple(_Known(next(known)) for _ in parts)).read(moment, limiter, client)
    if isinstance(key, ClientAddress):
        return key.locate(entrance)[0] if key.trusted else key.truncated(client)
    if key is user:
        person = moment.get("user") or (moment.get("state") or {}).get("user")
        name = person.display_name if isinstance(person, SimpleUser) else person
        return f"user:{name}" if name else None
    found: str = key.read(moment, limiter, client)
    return found


class _Known(Key):
    def __init__(self, found: Any) -> None:
        self._found: str = found

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        return self._found


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from(sorted(CLIENTS)),
    st.sampled_from(sorted(KEYS)),
    WAYS,
    REQUESTS,
    CHANGES,
    st.sampled_from(["in place", "lists", "a copy"]),
    st.booleans(),
)
async def test_whatever_others_change_inside_the_client_is_who_it_was_at_the_entrance(
    client: str, by: str, way: str, request: dict[str, Any], changes: dict[str, Any], how: str, is_known: bool
) -> None:
    """Whether its users are `is_known` outside of the middleware, too."""
    key, listener, found = KEYS[by], Listener(), list[str]()
    limiter = Limiter(slidegate.MemoryStore(clock=FakeClock()), observers=[listener])
    moments: list[Scope] = []
    limit = RateLimit("1/hour", name="at the endpoint")

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        found.append(client_key(http))
        moments.append(scope)
        if way == "by hand":
            await strike(http, "ban")
        try:
            await limit.check(http)
        except slidegate.RateLimitExceeded as error:
            answer: Any = await slidegate.rate_limit_exceeded(http, error)
        else:
            answer = PlainTextResponse("no", 404)
        await answer(scope, receive, send)

    signals: dict[int | str, int] = {404: 1} if way == "status" else {"refused": 1} if way == "refused" else {403: 1}
    policy = BanPolicy("1/10m", "1h", key=key, signals=signals, ban_private=True)
    app = RateLimitMiddleware(
        changing(endpoint, changes, how), limits="100/hour", limiter=limiter, client=CLIENTS[client], bans=policy
    )
    entrance = scope_of(**deepcopy(request))
    if is_known:
        entrance["user"] = SimpleUser("pat")
    asked = deepcopy(entrance)
    own = CLIENTS[client].locate(deepcopy(entrance))[0]
    await send_scope(app, asked)
    if way == "by hand, later":
        await strike(Request(asked), "ban")
    if way == "refused":
        limit_again = deepcopy(entrance)
        await send_scope(app, limit_again)
        asked = limit_again
    moment = asked if way in ("status", "by hand, later") else moments[-1]
    wanted = expected(key, entrance, moment, own, limiter)
    bans = [ban.key async for ban in limiter.bans()]
    note(f"{own=} {wanted=} {bans=} {found=}")
    assert set(found) == {own}, "client_key"
    assert {state.key for _, decision in asked["slidegate"].decisions for state in decision.states} == {own}, "limits"
    assert {outcome.client for outcome in listener.outcomes} == {own}, "outcomes"
    assert {event.details["client"] for event in listener.events if event.kind == "refused"} <= {own}, "reports"
    subject = own if isinstance(key, Combined) else wanted
    is_protected = client == "proxies" and (subject or "").startswith("10.")
    assert bans == ([] if wanted is None or subject == "unknown-peer" or is_protected else [wanted])


def forwarded(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


async def test_each_of_two_middlewares_knows_the_client_as_it_came_to_it_also_when_the_request_has_ended() -> None:
    outer, inner = Limiter(), Limiter()
    seen: list[str] = []

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(client_key(Request(scope)))
        await PlainTextResponse("no", 404)(scope, receive, send)

    within = RateLimitMiddleware(endpoint, limiter=inner, bans=BanPolicy("2/10m", signals={404: 1}, name="inner"))
    proxied: Any = ProxyHeadersMiddleware(within, trusted_hosts="*")
    app = RateLimitMiddleware(proxied, limiter=outer, bans=BanPolicy("2/10m", signals={404: 1}, name="outer"))
    scope = scope_of(headers=forwarded(VICTIM))
    await send_scope(app, scope)
    scope["client"] = ("192.0.2.1", 1)
    assert [*seen, client_key(Request(scope))] == [VICTIM, VICTIM], "the innermost, as it came to it"
    await strike(Request(scope), policy="outer")
    await strike(Request(scope), policy="inner")
    assert [ban.key async for ban in outer.bans()] == [PEER]
    assert [ban.key async for ban in inner.bans()] == [VICTIM]


@pytest.mark.parametrize(
    ("client", "peer", "fields", "change", "is_found"),
    [
        (client_ip(), PROXY, forwarded(PEER), PEER, True),
        (client_ip(), None, forwarded(PEER), PEER, True),
        (client_ip(trusted=PROXIES), PROXY, forwarded(PEER), PEER, False),
        (client_ip(trusted=PROXIES), PROXY, forwarded(f"{VICTIM}, {PEER}"), VICTIM, True),
        (client_ip(), PEER, {}, PEER, False),
        (client_ip(), PEER, {}, None, False),
        (client_ip(), "testclient", {}, "testclient", False),
        (client_ip(ipv4_prefix=24), PEER, {}, "203.0.113.10", False),
    ],
)
@pytest.mark.parametrize("copies", [False, True])
async def test_something_inside_that_finds_another_address_is_found_once(
    client: ClientAddress, peer: str | None, fields: dict[str, str], change: str | None, is_found: bool, copies: bool
) -> None:
    @RateLimit("9/minute")
    async def page(request: Request) -> Response:
        return PlainTextResponse("hi")

    inside = changing(starlette(page), {"client": change and (change, 0)}, "a copy" if copies else "in place")
    app = RateLimitMiddleware(inside, client=client)
    for _ in range(3):
        await call(app, client=peer and (peer, 1), headers=fields)
    assert [finding.code for finding in app.findings].count("SG104") == is_found


@settings(max_examples=examples(200), deadline=None)
@example([("a", True), ("free", False)], "answers", True, False)
@example([("a", True), ("a", False)], "answers", True, True)
@given(
    st.lists(st.sampled_from([*product("abc", (False, True)), ("free", False)]), min_size=1, max_size=4),
    st.sampled_from(["raises", "answers"]),
    st.booleans(),
    st.booleans(),
)
async def test_the_answer_and_the_event_tell_of_the_last_decision(
    asked: list[tuple[str, bool]], then: str, has_observers_of_requests: bool, is_within: bool
) -> None:
    """An endpoint asks limits, spent ones and others, and catches their refusals; it raises the last one or answers."""
    listener = Listener()
    if not has_observers_of_requests:
        listener.request = None  # type: ignore[assignment,method-assign]
    limiter = Limiter(slidegate.MemoryStore(clock=FakeClock()), observers=[listener])
    limits = {
        f"{name}{is_spent}": RateLimit("1/minute" if is_spent else "1000/minute", name=f"{name}{is_spent}")
        for name in "abc"
        for is_spent in (False, True)
    }
    limits["freeFalse"] = RateLimit(limits=lambda request: "unlimited", name="free")
    last: list[Any] = []

    async def endpoint(request: Request) -> Response:
        last.clear()
        for name, is_spent in asked:
            last[:] = [None]
            try:
                await limits[f"{name}{is_spent}"].check(request)
            except slidegate.RateLimitExceeded as error:
                last[:] = [error]
        if last[0] is not None and then == "raises":
            raise last[0]
        return PlainTextResponse("page")

    app = RateLimitMiddleware(starlette(endpoint), limiter=limiter)
    if is_within:
        app = RateLimitMiddleware(app, limits="99/hour", limiter=limiter, name="outer")
    await call(app)
    listener.events.clear()
    answer = await call(app)
    name, is_refused = asked[-1][0], asked[-1][1]
    refused = [event.details["rule"] for event in listener.events if event.kind == "refused"]
    exceeded = [event.details["rule"] for event in listener.events if event.kind == "exceeded"]
    assert refused == exceeded == ([f"{name}True"] if is_refused else [])
    assert ("retry-after" in answer.headers) == is_refused
    assert ("cache-control" in answer.headers) == is_refused
    assert answer.status == (429 if is_refused and then == "raises" else 200)
    for outcome in listener.outcomes[1:]:
        assert [one.allowed for one in outcome.decisions].count(False) == is_refused
    shown = {item.partition(";")[0].strip('" ') for item in answer.headers.get("ratelimit", "").split(",")}
    refusals = {f"{one}True" for one, is_spent in asked if is_spent} - {f"{name}{is_refused}"}
    assert not shown & refusals, "a refusal after which the request was decided again is not shown"
    if is_refused:
        assert last[0].decision.status == last[0].status_code == 429
