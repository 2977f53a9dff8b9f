"""What a worker publishes of its rules: all that is known when it starts, once for equal workers, and no more."""

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import BanPolicy, MessageLimits, RateLimit, RateLimitMiddleware, Rule, header, user
from slidegate.limiter import PublishedRule
from slidegate.limiter.workers import RULES, WORKERS
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import hello, page, statuses
from ..ops.shared_rows import SharedRows, limiter_on
from ..virtual_time import turns


@RateLimit.exempt
async def exempt(request: Any) -> Any:
    return await page(request)


async def test_a_worker_publishes_labels_limits_keys_actions_and_order() -> None:
    rows = SharedRows(FakeClock())
    limiter = limiter_on(rows)
    rules = [
        Rule("/health", exempt=True),
        Rule("/.git/{rest:path}", block=True),
        Rule("/login", "5/minute; 50/hour", key=header("X-API-Key"), name="login"),
        Rule("*", limits=lambda request: "9/minute", fallback_limits="7/minute", shadow=True, name="plans"),
        Rule("*", concurrency=4, key=lambda request: "tenant:a", name="busy"),
    ]
    bans = BanPolicy("20/10m", "1h", signals={"refused": 1, "/.env": "ban"}, key=user, name="abuse")
    messages = MessageLimits("10/s")
    app = RateLimitMiddleware(hello, rules=rules, limiter=limiter, bans=bans, messages=messages, name="outer")
    (published,) = await limiter.published()
    assert {(one.name, one.limit, one.rule, one.key, one.action, one.order) for one in published.text.rules} == {
        ("", "", "/health", "", "exempt", 0),
        ("", "", "/.git/{rest|path}", "", "block", 1),
        ("login_60", "5/1m", "login", "header:x-api-key", "limit", 2),
        ("login_3600", "50/1h", "login", "header:x-api-key", "limit", 2),
        ("plans", "7/1m", "plans", "address", "limit", 3),
        ("busy", "4", "busy", "function", "limit", 4),
        ("", "10/1s", "messages", "address", "limit", 5),
        ("", "", "abuse", "user", "ban", 0),
        ("", "", "abuse", "user", "honeypot", 0),
    }
    assert {one.middleware for one in published.text.rules} == {"outer"}
    assert [(one.shadow, one.by_function) for one in published.text.having("plans")] == [(True, True)]
    assert app.limiter is limiter


async def test_workers_that_have_met_other_routes_publish_one_text_and_16_bytes_each() -> None:
    rows = SharedRows(FakeClock())
    routes = [Route(f"/{name}/{{id}}", page) for name in "abc"] + [Route("/free", exempt)]
    for path in ("/a/1", "/b/1", "/free", "/nowhere"):
        app = RateLimitMiddleware(Starlette(routes=routes), default_limits="5/minute", limiter=limiter_on(rows))
        assert await statuses(app, 2, path) == [404 if path == "/nowhere" else 200] * 2
        await turns()
    texts = {name[1] for name in rows.rows if name[0] == RULES}
    assert sorted(number - min(texts) for number in texts) == [0, 1], "a head and a part"
    assert [len(value) for name, (value, _) in rows.rows.items() if name[0] == WORKERS] == [16] * 4
    (published,) = await limiter_on(rows).published()
    labels = ["per-route *", *(f"per-route GET /{name}/{{id}}" for name in "abc")]
    assert (published.workers, [one.rule for one in published.text.rules]) == (4, labels)


async def test_a_text_that_is_gone_is_written_again_and_one_of_a_later_version_is_not_read() -> None:
    rows = SharedRows(FakeClock())
    app = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter_on(rows))
    tool = limiter_on(rows)

    async def written() -> list[Any]:
        app.limiter.engine.workers.due_s = 0.0
        rows.clock.advance("1s")
        assert await statuses(app, 1) == [200]
        await turns()
        return [(one.is_readable, [*one.text.limits]) for one in await tool.published()]

    assert await written() == [(True, ["default"])]
    for name in [name for name in rows.rows if name[0] == RULES]:
        del rows.rows[name]
    assert [one.is_readable for one in await tool.published()] == [False]
    assert await written() == [(True, ["default"])]
    for name, (value, until_us) in {**rows.rows}.items():
        if name[0] == RULES and b"parts" in value:
            rows.rows[name] = json.dumps({"version": 9}).encode(), until_us
    assert [one.is_readable for one in await tool.published()] == [False]
    assert (await tool.override("anything", "5/minute", "1h")).workers == 0, "nobody says that no worker has it"


async def test_a_text_that_was_gone_when_it_was_asked_for_is_asked_for_again() -> None:
    """What is not there is not remembered: it may be there the next time."""
    rows = SharedRows(FakeClock())
    told = RecordingObserver()
    own, other = limiter_on(rows, secret="a" * 16, observers=[told]), limiter_on(rows, secret="b" * 16)
    apps = [RateLimitMiddleware(hello, limits="5/minute", limiter=limiter) for limiter in (own, other)]
    await other.engine.workers.write(1.0)
    for name in [name for name in rows.rows if name[0] == RULES]:
        del rows.rows[name]
    await own.engine.workers.write(1.0)
    assert told.kinds == [], "the rules of the other worker are not there"
    await other.engine.workers.write(1.0)
    await own.engine.workers.write(1.0)
    assert told.kinds == ["secret_differs"]
    assert [app.limiter for app in apps] == [own, other]


@pytest.mark.parametrize("field", ["name", "limit", "rule", "key", "action", "shadow", "by_function", "order"])
def test_a_published_rule_says_only_what_it_knows(field: str) -> None:
    assert getattr(PublishedRule(), field) in ("", "limit", False, 0)
