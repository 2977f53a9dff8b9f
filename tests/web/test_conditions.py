"""Rules that apply only under a condition of the user's, and rules that block."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import anyio.lowlevel
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.stats import Statistics
from slidegate.testing import FakeClock

from ..asgi import call, hello, scope_of, send_scope, statuses
from .limited import AT, METHODS, limited
from .middlewares import charged

PREFLIGHT = {"origin": "https://a.example", "access-control-request-method": "GET"}


def agent(request: Any) -> str:
    return request.headers.get("user-agent", "")


def is_curl(request: Any) -> bool:
    return "curl" in agent(request)


CURL = {"user-agent": "curl/8.5"}


def is_marked(request: Any) -> bool:
    return bool(request.headers.get("x-counts") == "yes")


async def is_marked_async(request: Any) -> bool:
    return is_marked(request)


def fails(request: Any) -> bool:
    raise LookupError("no such country")


async def fails_later(request: Any) -> bool:
    await anyio.lowlevel.checkpoint()
    raise LookupError("no such country")


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("when", [None, is_marked, is_marked_async])
@pytest.mark.parametrize("methods", [None, ["POST"], ["get", "PUT"]])
async def test_exactly_the_requests_that_it_is_about_are_counted(at: str, when: Any, methods: Any) -> None:
    app = limited(at, "5/hour", when=when, methods=methods)
    taken = {name.upper() for name in methods or METHODS}
    taken |= {"HEAD"} if "GET" in taken else set()
    dice, counted = random.Random(7), 0
    for method, counts in dice.choices(list(product(METHODS, ("yes", "no"))), k=60):
        answer = await call(app, "/", method, headers={"X-Counts": counts})
        is_about = method in taken and (when is None or counts == "yes")
        counted += is_about
        assert answer.status == (429 if is_about and counted > 5 else 200), (method, counts, counted)


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("options", [{"shadow": True}, {"concurrency": 1}, {"count_if": lambda status: status == 200}])
async def test_what_it_is_not_about_takes_nothing_of_any_kind(options: Any, at: str) -> None:
    store = MemoryStore(clock=FakeClock())
    app = limited(at, "2/hour", limiter=Limiter(store), methods=["POST"], when=is_marked, **options)
    for _ in range(4):
        answer = await call(app)
        assert (answer.status, "ratelimit" in answer.headers) == (200, False)
    assert store.stats().keys == 0


async def test_a_condition_at_an_endpoint_may_read_the_body() -> None:
    async def has_large_body(request: Any) -> bool:
        return len(await request.body()) > 3

    app = limited("decorator", "1/hour", when=has_large_body)
    sent = [b"abc", b"abcd", b"abc", b"abcd"]
    assert [(await call(app, "/", "POST", body=body)).status for body in sent] == [200, 200, 200, 429]


@pytest.mark.parametrize("when", [fails, fails_later, lambda request: request.body()])
async def test_where_a_condition_fails_limits_and_blocks_apply_and_exemptions_do_not(
    when: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exempt = RateLimitMiddleware(hello, rules=[Rule("*", exempt=True, when=when), Rule("*", "1/hour")])
    assert await statuses(exempt, 2) == [200, 429]
    limited = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", when=when)])
    assert await statuses(limited, 2) == [200, 429]
    final = RateLimitMiddleware(hello, rules=[Rule("*", "9/hour", when=when, final=True), Rule("*", "1/hour")])
    assert await statuses(final, 2) == [200, 429]
    blocking = RateLimitMiddleware(hello, rules=[Rule("*", block=True, when=when)])
    assert await statuses(blocking, 2) == [403, 403]
    assert len(caplog.records) == 4  # once a minute for each rule and middleware
    assert all("when function of rule 'default' failed" in record.getMessage() for record in caplog.records)


async def test_a_condition_is_asked_once_for_each_request_and_middleware() -> None:
    asked: list[str] = []

    def when(request: Any) -> bool:
        asked.append(request.url.path)
        return True

    bans = BanPolicy("100/minute", signals={"refused": 1, "4xx": 1, "/honey": 1})
    app = RateLimitMiddleware(
        hello,
        rules=[Rule("/a", exempt=True, when=lambda request: False), Rule("*", "9/hour", when=when, name="one"),
               Rule("*", "8/hour", when=when, name="two")],
        bans=bans,
    )  # fmt: skip
    assert (await call(app, "/a")).status == 200
    assert asked == ["/a"]
    assert await statuses(app, 2, "/b") == [200, 200]
    assert asked == ["/a", "/b", "/b"]


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "title"), [(None, "Forbidden"), (503, "Service Unavailable"), (499, "Request not accepted")]
)
async def test_a_block_refuses_with_its_status_and_a_problem(status: int | None, title: str) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("/admin/{rest:path}", block=True, status=status, name="closed")])
    answer = await call(app, "/admin/users")
    assert answer.status == (status or 403)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert "retry-after" not in answer.headers
    assert f'"title": "{title}"'.encode() in answer.body
    assert b'"violated-policies": ["closed"]' in answer.body
    assert (await call(app, "/admin/users", "HEAD")).body == b""
    assert (await call(app, "/other")).status == 200


async def test_a_block_does_not_strike() -> None:
    app = RateLimitMiddleware(
        hello,
        rules=[Rule("*", block=True, when=is_curl)],
        bans=BanPolicy("2/minute", signals={"refused": 1, "4xx": 1}, ban_private=True),
    )
    assert await statuses(app, 9, headers=CURL) == [403] * 9
    assert await statuses(app, 2) == [200, 200]


async def test_a_block_tells_the_decision_and_the_stats_which_rule_it_was() -> None:
    told: list[Any] = []

    def on_refused(request: Any, decision: Any) -> PlainTextResponse:
        told.append((decision.reason, decision.by, decision.retry_after))
        return PlainTextResponse("no", 418)

    limiter = Limiter(MemoryStore(clock=FakeClock()))
    statistics = Statistics(limiter)
    rules = [Rule("*", block=True, when=is_curl, name="agents")]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules, on_refused=on_refused)
    assert await statuses(app, 2, headers=CURL) == [418, 418]
    assert told == [("blocked", "agents", None)] * 2
    figures = statistics.stats().rules["agents"]
    assert figures.refused == 2
    assert figures.seen.count("blocked") == 2


@pytest.mark.parametrize("when", [None, is_curl])
async def test_a_block_refuses_websockets_and_preflights(when: Any) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", block=True, when=when)])
    scope = scope_of(headers=CURL, type="websocket")
    assert [message["type"] for message in (await send_scope(app, scope)).messages] == ["websocket.close"]
    assert (await call(app, method="OPTIONS", headers=CURL | PREFLIGHT)).status == 403
    if when is not None:
        assert (await call(app, method="OPTIONS", headers=PREFLIGHT)).status == 200


# -- a walk over the rules, one by one, decides the same ---------------------------------------------------------------

PATHS = ["/a", "/b", "/{rest:path}", "*"]


def random_rule(draw: random.Random, number: int) -> tuple[Rule, dict[str, Any]]:
    """Return a rule, and what the model knows of it."""
    facts: dict[str, Any] = {
        "path": draw.choice(PATHS),
        "kind": draw.choice(["limit", "limit", "exempt", "final", "block"]),
        "when": draw.choice([None, "flag", "fails"]),
        "flag": draw.choice("xy"),
        "status": 400 + number,
    }

    def flagged(request: Any) -> bool:
        return facts["flag"] in request.headers.get("flags", "")

    async def flagged_later(request: Any) -> bool:
        return flagged(request)

    conditions: dict[str | None, list[Any]] = {
        None: [None],
        "flag": [flagged, flagged_later],
        "fails": [fails, fails_later],
    }
    when = draw.choice(conditions[facts["when"]])
    if facts["kind"] == "block":
        return Rule(facts["path"], block=True, when=when, status=facts["status"], name=f"r{number}"), facts
    if facts["kind"] == "exempt":
        return Rule(facts["path"], exempt=True, when=when), facts
    final = facts["kind"] == "final"
    return Rule(facts["path"], "1000/hour", when=when, final=final, name=f"r{number}"), facts


def walked(rules: list[dict[str, Any]], path: str, flags: str) -> tuple[int, list[str]]:
    """Return the status of the answer, and the rules that charge, by going from rule to rule."""
    charged: list[str] = []
    for number, rule in enumerate(rules):
        if rule["path"] not in (path, "*", "/{rest:path}"):
            continue
        failing = rule["when"] == "fails"
        if rule["when"] == "flag" and rule["flag"] not in flags:
            continue
        if rule["kind"] == "block":
            return rule["status"], []
        if rule["kind"] == "exempt":
            if failing:
                continue
            break
        charged.append(f"r{number}")
        if rule["kind"] == "final" and not failing:
            break
    return 200, charged


@pytest.mark.parametrize("seed", range(12))
async def test_rules_with_conditions_decide_as_a_walk_over_them(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        made = [random_rule(draw, number) for number in range(draw.randint(1, 6))]
        facts = [known for _, known in made]
        asked: list[Any] = []

        async def app(scope: Scope, receive: Receive, send: Send, asked: list[Any] = asked) -> None:
            asked.append(charged(scope))
            await hello(scope, receive, send)

        middleware = RateLimitMiddleware(app, rules=[rule for rule, _ in made], ignore_checks=["SG103"])
        for _ in range(6):
            path, flags = draw.choice(["/a", "/b", "/c"]), draw.choice(["", "x", "y", "xy"])
            status, expected = walked(facts, path, flags)
            asked.clear()
            assert (await call(middleware, path, headers={"flags": flags})).status == status, (facts, path, flags)
            assert asked == ([expected] if status == 200 else []), (facts, path, flags)
