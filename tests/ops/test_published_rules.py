"""The rules of all workers, and where they differ, as after half an upgrade."""

from typing import Any

import pytest

from slidegate import BanPolicy, ConfigurationError, Networks, Quota, RateLimitMiddleware, Rule, client_ip, header
from slidegate.ops.explain import facts_of
from slidegate.ops.published_rules import rule_rows
from slidegate.testing import FakeClock

from ..asgi import PEER, hello, statuses
from .shared_rows import SharedRows, limiter_on

ALL, LOGIN = "9/1m by address", "5/1m by address, /login"
TEXTS = {"api": ALL, "login": LOGIN, "client": "client by address"}
BASE = [Rule("*", "9/minute", name="api"), Rule("/login", "5/minute", name="login")]
SCANS = BanPolicy(name="scans", shadow=True)
SHUT = Rule("/.git/{rest:path}", block=True, methods=["POST"], name="shut")


def login(limits: Any = "5/minute", path: str = "/login", **options: Any) -> dict[str, Any]:
    return {"rules": [BASE[0], Rule(path, limits, name="login", **options)]}


VERSIONS: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {
    "the same": ({"rules": BASE}, {}),
    "another amount": ({"rules": [Rule("*", "8/minute", name="api"), BASE[1]]}, {"api": [ALL, "8/1m by address"]}),
    "another key": (login(key=header("X-API-Key")), {"login": [LOGIN, "5/1m by header:x-api-key, /login"]}),
    "another zone": (
        login(Quota("5/day", zone="Europe/Berlin")),
        {"login": [LOGIN, "5/day from 00:00 in Europe/Berlin by address, /login"]},
    ),
    "in shadow": (login(shadow=True), {"login": [LOGIN, f"{LOGIN}, in shadow"]}),
    "a function": (login(lambda request: "5/m"), {"login": [LOGIN, "limits of a function by address, /login"]}),
    "one rule less": ({"rules": BASE[:1]}, {"login": [LOGIN, ""]}),
    "a policy more": ({"rules": BASE, "bans": SCANS}, {"scans": ["", "ban by address, in shadow"]}),
    "another path": (login(path="/log-in"), {"login": [LOGIN, "5/1m by address, /log-in"]}),
    "a list": ({"rules": BASE, "blocklist": Networks(["::1"])}, {"blocklist": ["", "blocklist, ranges: 1"]}),
    "a block": ({"rules": [SHUT, *BASE]}, {"shut": ["", "block, POST /.git/{rest:path}"]}),
    "other networks": (
        {"rules": BASE, "client": client_ip(ipv4_prefix=24)},
        {name: [text, text.replace("address", "address /24 and /64")] for name, text in TEXTS.items()},
    ),
    "of another name": (
        {"rules": BASE, "name": "outer"},
        {name: [text, ""] for name, text in TEXTS.items()}
        | {f"outer:{name}": ["", text] for name, text in TEXTS.items()},
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_rule_that_some_workers_have_says_how_many(version: str) -> None:
    options, differing = VERSIONS[version]
    rows = SharedRows(FakeClock())
    apps = [
        RateLimitMiddleware(hello, limiter=limiter_on(rows), **each) for each in ({"rules": BASE}, options, options)
    ]
    for app in apps:
        await app.limiter.engine.workers.write(1.0)
    expected = set()
    for name, (base, other) in differing.items():
        expected |= {(name, base, "in 1 of 3 workers"), (name, other, "in 2 of 3 workers")}
    for limiter in (*(app.limiter for app in apps), limiter_on(rows)):  # the last is a tool's, which uses no rule
        shown = rule_rows(await limiter.published())
        of_some = {(":".join(filter(None, (row.middleware, row.rule))), row.does, row.workers) for row in shown}
        assert {row for row in of_some if row[2]} == {row for row in expected if row[1]}


async def test_what_idle_workers_have_published_is_known_for_a_day() -> None:
    rows = SharedRows(FakeClock())
    old, app = (RateLimitMiddleware(hello, limiter=limiter_on(rows), rules=rules) for rules in (BASE[:1], BASE))
    for each in (old, app):  # the first is killed an hour before the other has its last request
        await each.limiter.engine.workers.write(1.0)
        rows.clock.advance("1h")
    tool = limiter_on(rows)
    await tool.override("login", "6/minute", "1h")
    for name, limit, wrong in (("logn", "6/minute", "did you mean 'login'"), ("login", "6/hour", "'5/1m'")):
        with pytest.raises(ConfigurationError, match=wrong):
            await tool.override(name, limit, "1h")
    found = await facts_of(tool, PEER)
    assert [(row.rule, row.what, row.note) for row in found.rows if row.rule == "login"] == [
        ("login", "6/1m", "5/1m in code")
    ]
    assert (found.workers, found.is_open) == (1, False)
    assert "what workers have changed since their last request, 1 h ago" in found.left_out
    rows.clock.advance("23h")
    assert await tool.published() == []


async def test_a_limit_that_one_worker_has_not_met_yet_is_no_difference() -> None:
    rows = SharedRows(FakeClock())
    apps = [RateLimitMiddleware(hello, limiter=limiter_on(rows), default_limits="5/minute") for _ in range(2)]
    assert await statuses(apps[0], 1) == [200]
    for app in apps:
        await app.limiter.engine.workers.write(1.0)
    tool = limiter_on(rows)
    assert [(row.rule, row.workers) for row in rule_rows(await tool.published())] == [("per-route *", "")]
    assert [(row.rule, row.note) for row in (await facts_of(tool, PEER)).rows] == [("per-route *", "")]
