"""The admin API as operators use it, mounted in Starlette and in FastAPI."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from fastapi import FastAPI
from hypothesis import strategies as st
from starlette.testclient import TestClient

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.admin import AdminRoutes
from slidegate.admin.service import OPERATIONS

from .admin_client import HOSTILE, READ_TOKEN, TOKEN, AdminClient, Operator, names

FIELDS = {
    "stats": "window_s workers total rules routes",
    "history": "window_s step_s start_at passed refused banned blocked shadow_refused p50_ms p95_ms",
    "rules": "middlewares",
    "clients": "window_s clients",
    "client": "key ban windows refusals",
    "refusals": "refusals",
    "shadow": "window_s clients_window_s rules",
    "bans": "bans next matching total",
    "limits": "limits",
    "lists": "lists",
    "events": "events",
    "config": "version python compiled store per_process deadline_s on_error findings workers",
    "user": "role name",
}
"""The fields of each response to a GET."""


@pytest.mark.parametrize("path", FIELDS)
async def test_every_look_is_answered_before_and_after_there_is_anything_to_see(path: str) -> None:
    admin = AdminClient()
    query = {"key": "203.0.113.9"} if path == "client" else {}
    for _ in range(2):
        for token in (TOKEN, READ_TOKEN):
            assert list(await admin.operator(token).get(path, **query)) == FIELDS[path].split()
        await admin.visit("/shadow", times=30)
        await admin.limiter.ban("user:1", "1h")


def test_there_are_no_other_operations() -> None:
    asked = [f"{operation.method} {operation.path}" for operation in OPERATIONS]
    changes = ["POST /bans", "DELETE /bans", "PUT /limits", "DELETE /limits"]
    assert sorted(asked) == sorted([*(f"GET /{path}" for path in FIELDS), *changes])


@pytest.mark.parametrize(
    "path", ["", "nothing", "bans/", "bans/203.0.113.7", "keys", "stats/", "client/", "openapi.json", "session"]
)
async def test_an_unknown_path_says_so_in_problem_details(path: str, operator: Operator) -> None:
    answer = await operator.ask("GET", path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert ("did you mean '/client'?" in answer.json()["detail"]) == (path == "client/")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "PROPFIND", "PUT", "PATCH", "DELETE", "POST"])
async def test_an_unknown_method_says_which_there_are(method: str, operator: Operator) -> None:
    for path, allow in (("bans", "DELETE, GET, HEAD, POST"), ("stats", "GET, HEAD")):
        if method not in allow:
            answer = await operator.ask(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allow)
            assert answer.json()["detail"] == f"{path} allows {allow}, not {method}."


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("stats", {"window": "2"}, "window: expected one of 1m, 5m, 10m, 30m, 1h, 3h, 6h, 12h, 24h, got the string"),
        ("stats", {"windw": "1m"}, "windw: there is no such parameter; did you mean 'window'?"),
        ("bans", {"limit": ["1", "2"]}, "limit: it is given more than once; give it once"),
        ("bans", {"limit": "0"}, 'limit: expected a whole number from 1 to 500, got the string "0"'),
        ("bans", {"cursor": "x"}, 'cursor: expected the `next` of the previous page, got the string "x"'),
        ("history", {"rule": "a", "route": "b"}, "route: expected a rule or a route, not both"),
        (
            "client",
            {},
            "key: it is missing; expected an address, a network or a key as stored, "
            'for example "203.0.113.7" or "user:42"',
        ),
        ("events", {"kind": "baned"}, "kind: expected one of ban"),
    ],
)  # fmt: skip
async def test_a_parameter_that_cannot_be_used_is_named_with_what_was_expected(
    path: str, query: dict[str, Any], message: str
) -> None:
    answer = await AdminClient().operator().ask("GET", path, **query)
    assert (answer.status_code, answer.json()["detail"][: len(message)]) == (422, message)
    assert answer.json()["errors"][0]["field"] == message.partition(":")[0]


TARGET = 'target: expected an address, a network or a key of the form kind:value, for example "203.0.113.7", '
LENGTH = 'duration: expected a length of time up to 400 days, for example "1h", or "permanent", got '


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"duration": 3600}, LENGTH + "the number 3600"),
        ({"duration": "401d"}, LENGTH + 'the string "401d"'),
        ({"duration": None}, LENGTH + "null"),
        ({"reason": {"a": 1}}, "reason: expected at most 1024 characters for operators, got an object"),
        ({"force": 1}, "force: expected true or false, got the number 1"),
        ({"target": "x" * 1_025}, TARGET + '"198.51.100.0/24" or "user:42", got the string "xxx'),
        ({"target": ["203.0.113.7"]}, TARGET + '"198.51.100.0/24" or "user:42", got an array'),
        # Mistyped addresses and names, which cannot be keys.
        *(({"target": text}, TARGET) for text in ("203.0.113.O", "example.com", "example.com:443", "not-an-ip", "ann")),
        *(({"target": text}, TARGET) for text in ("300.1.1.1", "192.0.2.0/33", "2001:db8::g", ":x", "user:", "")),
        ({"target": "0.0.0.0/0"}, "ban: '0.0.0.0/0' contains every address"),
        ({"unit": 1}, "unit: there is no such parameter"),
        (True, "body: expected an object, got true"),
    ],
)
async def test_a_field_of_a_body_that_cannot_be_used_is_named_in_the_words_of_json(body: Any, message: str) -> None:
    admin = AdminClient()
    sent = {"target": "203.0.113.7", "duration": "1h", **body} if isinstance(body, dict) else body
    answer = await admin.operator().ask("POST", "bans", json=sent)
    assert (answer.status_code, answer.json()["detail"][: len(message)]) == (422, message)
    assert [ban async for ban in admin.limiter.bans()] == []
    for word in ("timedelta", "Python", "'str'", "dict", "None", "True"):
        assert word not in answer.text


async def test_an_answer_names_a_bounded_number_of_errors_in_a_bounded_number_of_characters() -> None:
    query = {f"{number}" + "x" * 1_000: "y" * 1_000 for number in range(30)}
    answer = await AdminClient().operator().ask("GET", "bans", **query)
    assert answer.status_code == 422
    assert len(answer.content) < 8_000


async def test_what_has_not_changed_is_not_sent_again(admin: AdminClient, operator: Operator) -> None:
    for path in ("rules", "lists", "bans"):
        first = await operator.ask("GET", path)
        again = await operator.ask("GET", path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    await admin.limiter.ban("user:1", "1h")
    changed = await operator.ask("GET", "bans", headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["total"]) == (200, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({name for operation in OPERATIONS for name in operation.takes.model_fields})
VALUES = st.sampled_from(["1h", "5m", "requests", "0", "1", "203.0.113.7", "user:42", "banned", "1:x"]) | st.text(
    max_size=9
)


def test_whatever_is_asked_is_answered_or_refused_in_fastapi_too() -> None:
    app, limiter = FastAPI(), Limiter()
    app.mount("/ops/admin", AdminRoutes(limiter, token=TOKEN))
    rules = [Rule("/ops/{rest:path}", exempt=True), Rule("*", "5/minute")]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=limiter)
    with TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"}) as client:

        @hypothesis.settings(max_examples=150, deadline=None, database=None, derandomize=True)
        @hypothesis.given(
            st.sampled_from(OPERATIONS),
            st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
            JSON | st.dictionaries(st.sampled_from(NAMES), JSON | VALUES, max_size=4),
        )
        def ask(operation: Any, query: dict[str, str], body: Any) -> None:
            path = f"/ops/admin{operation.path}"
            if operation.method in ("POST", "PUT"):
                answer = client.request(operation.method, path, json=body)
            else:
                answer = client.request(operation.method, path, params=query)
            assert answer.status_code in (operation.status, 404, 422), answer.text
            assert answer.headers["content-type"].startswith("application/")
            assert (answer.status_code < 300) == ("code" not in answer.json())

        ask()


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 64])
async def test_a_key_of_any_signs_can_be_seen_and_freed_and_banned_if_it_has_a_kind(
    key: str, admin: AdminClient, operator: Operator
) -> None:
    await admin.limiter.hit(key, "5/minute", rule="all")
    assert key in names((await operator.get("clients"))["clients"], "key")
    banned = await operator.ask("POST", "bans", json={"target": key, "duration": "1h", "reason": key})
    assert banned.status_code == (201 if key.startswith("user:") else 422)
    await admin.limiter.ban(key, "1h", reason=key)
    (ban,) = (await operator.get("bans", q=key[:3]))["bans"]
    assert ban["target"] == key
    assert ban["reason"].isprintable()
    seen = await operator.get("client", key=key)
    assert (seen["key"], seen["ban"]["target"], seen["windows"][0]["used"]) == (key, key, 1)
    assert (await operator.ask("DELETE", "bans", target=key)).json() == {"target": key}
    assert (await operator.ask("DELETE", "bans", target=key)).status_code == 404
    for event in (await operator.get("events"))["events"]:
        assert event["message"].isprintable()
        assert all(value.isprintable() for value in event["details"].values())


async def test_64_kilobytes_of_a_key_are_refused_or_digested_and_never_shown(
    admin: AdminClient, operator: Operator
) -> None:
    long = "user:" + "<script>" * 8_192
    await admin.limiter.hit(long, "5/minute", rule="all")
    assert await admin.visit("/api/a", **{"X-API-Key": "k" * 60_000}) == [200]
    keys = names((await operator.get("clients"))["clients"], "key")
    assert all(len(key) <= 64 for key in keys)
    assert sorted(key.partition("#")[0] for key in keys if "#" in key) == ["header:x-api-key", "long"]
    answer = await operator.ask("POST", "bans", json={"target": long[:60_000], "duration": "1h"})
    assert answer.status_code == 422
    assert len(answer.content) < 2_000
    assert (await operator.ask("POST", "bans", json={"target": long, "duration": "1h"})).status_code == 413
