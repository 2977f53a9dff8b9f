"""What a client gets to read: header fields and refusals."""

from __future__ import annotations

import json
import re
from asyncio import sleep
from typing import Any

import http_sf
import pytest
from starlette.responses import JSONResponse

from slidegate import BanPolicy, Decision, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, everyone, header
from slidegate.testing import FakeClock, limits_clock

from ..asgi import PEER, call, hello, statuses

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def middleware(*rules: Rule, clock: FakeClock | None = None, **options: Any) -> RateLimitMiddleware:
    limiter = Limiter(MemoryStore(clock=clock or FakeClock()))
    return RateLimitMiddleware(hello, limiter=limiter, rules=rules, **options)


def fields(value: str) -> list[tuple[str, dict[str, Any]]]:
    return [(item, dict(params)) for item, params in http_sf.parse(value.encode(), tltype="list")] if value else []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_refusal_is_complete(method: str) -> None:
    app = middleware(Rule("*", "1/minute", name="api"))
    body = (await statuses(app, 1, method="GET"), await call(app))[1].body
    answer = await call(app, method=method)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["content-length"] == str(len(body))
    assert answer.body == (b"" if method == "HEAD" else body)
    assert answer.receives == 0
    assert json.loads(body) == {
        "type": QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "No more than 1 per 1m; Retry-After says when to try again.",
        "violated-policies": ["api"],
    }


@pytest.mark.parametrize("name", ["a", 'a"b', "a\\b", "x" * 64, "a b", "a,b=c", "100%", "%d%b"])
async def test_every_rule_name_that_is_accepted_parses_as_a_structured_field(name: str) -> None:
    answer = await call(middleware(Rule("*", "5/minute", name=name)))
    written = re.sub("[^A-Za-z0-9_.]", "_", name)  # what every parser of these fields accepts
    assert fields(answer.headers["ratelimit"]) == [(written, {"r": 4, "t": 60})]
    assert fields(answer.headers["ratelimit-policy"]) == [(written, {"q": 5, "w": 60})]


async def test_legacy_headers_speak_unix_seconds() -> None:
    with limits_clock(FakeClock(1_000_000_000_000)):
        answer = await call(middleware(Rule("*", "9/10s"), headers="legacy"))
    assert {name: value for name, value in answer.headers.items() if "ratelimit" in name} == {
        "x-ratelimit-limit": "9",
        "x-ratelimit-remaining": "8",
        "x-ratelimit-reset": "1000010",
    }


@pytest.mark.parametrize("later", [False, True])
async def test_on_refused_makes_the_answer_and_the_middleware_completes_it(later: bool) -> None:
    def refused(request: Any, decision: Decision) -> Any:
        body = {"path": request.url.path, "reason": decision.reason}
        answer = JSONResponse(body, 420, headers={"Cache-Control": "private"})
        return sleep(0, answer) if later else answer

    app = middleware(Rule("*", "1/minute"), on_refused=refused)
    await call(app)
    answer = await call(app, "/x")
    assert (answer.status, json.loads(answer.body)) == (420, {"path": "/x", "reason": "limited"})
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["cache-control"] == "private"
    assert answer.headers["ratelimit"] == '"default";r=0;t=60'


@pytest.mark.parametrize("later", [False, True])
async def test_on_refused_may_leave_the_answer_to_the_default_whose_status_it_sees(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []

    def refused(request: Any, decision: Decision) -> Any:
        seen.append((decision.reason, decision.status))
        own = JSONResponse({}, decision.status) if request.url.path == "/own" else None
        return sleep(0, own) if later else own

    app = middleware(
        Rule("/shut", block=True, status=503),
        Rule("*", "1/minute", key=header("X")),
        on_refused=refused,
        blocklist=Networks(["192.0.2.0/24"]),
        bans=BanPolicy("9/hour", status=429),
    )
    await app.limiter.ban("198.51.100.7", "1h", reason="manual")
    await call(app)
    requests: list[tuple[str, str, int]] = [("/", PEER, 429), ("/own", PEER, 429), ("/shut", PEER, 503)]
    requests += [("/", "192.0.2.1", 403), ("/own", "192.0.2.1", 403), ("/", "198.51.100.7", 403)]
    for path, client, status in requests:
        answers = [await call(app, path, client=(client, 1)) for _ in range(2)]
        assert [answer.status for answer in answers] == [status] * 2
        assert answers[0].body == answers[1].body
        assert (answers[0].body == b"{}") is (path == "/own")
    assert [status for _, status in seen] == [status for *_, status in requests for _ in range(2)]
    assert "on_refused" not in caplog.text


async def test_the_body_never_shows_what_the_client_sent() -> None:
    app = middleware(Rule("/x{rest:path}", "1/minute"), Rule("*", "1/minute", key=everyone))
    path = '/x"</script><!--\udcff'
    await call(app, path, raw_path=b"/x")
    answer = await call(app, path, raw_path=b"/x")
    assert answer.status == 429
    assert b"<" not in answer.body
    assert json.loads(answer.body)["violated-policies"] == ["_x_rest_path_", "default"]
