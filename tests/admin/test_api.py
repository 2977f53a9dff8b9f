"""The admin API as operators ask it, mounted in Starlette and in FastAPI; each answer is held to the document."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema
import pytest
import schemathesis
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.admin import AdminRoutes

from .admin_client import HOSTILE, READ_TOKEN, TOKEN, AdminClient, Operator, document, names

TODAY: dict[str, Any] = json.loads((Path(__file__).parent / "api.json").read_text("utf-8"))
OPERATIONS = [tuple(name.split()) for name in TODAY]
BODIES: dict[str, dict[str, Any]] = {
    "POST /bans": {"target": "203.0.113.7", "duration": "1h"},
    "PATCH /bans": {"target": "203.0.113.7", "duration": "1h"},
    "POST /keys/find": {"kind": "header", "name": "X-API-Key", "value": "k123"},
    "POST /keys/reset": {"key": "203.0.113.7"},
    "POST /keys/charge": {"key": "203.0.113.7", "rule": "all", "units": 1},
}


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "GET"])
async def test_every_look_is_answered_before_and_after_there_is_anything_to_see(path: str) -> None:
    admin = AdminClient()
    query = {"key": "203.0.113.9"} if path == "/client" else {}
    for _ in range(2):
        for token in (TOKEN, READ_TOKEN):
            await admin.operator(token).get(path[1:], **query)
        await admin.visit("/shadow", times=30)
        await admin.limiter.ban("user:1", "1h")


@pytest.mark.parametrize(("method", "path"), [operation for operation in OPERATIONS if operation[0] != "GET"])
async def test_strangers_and_readers_change_nothing(method: str, path: str) -> None:
    admin = AdminClient()
    ban = await admin.limiter.ban("203.0.113.7", "1d")
    await admin.limiter.charge("203.0.113.7", "20/minute", 5, rule="all")
    body = BODIES.get(f"{method} {path}")
    query = {} if body else {"target": "203.0.113.7"}
    for token, status in (("x" * 20, 401), (READ_TOKEN, 403)):
        answer = await admin.operator(token).ask(method, path[1:], json=body, **query)
        assert answer.status_code == (200 if path == "/keys/find" and status == 403 else status)
    assert [found async for found in admin.limiter.bans()] == [ban]
    await admin.limiter.unban("203.0.113.7")
    assert (await admin.limiter.peek("203.0.113.7", "20/minute", rule="all")).remaining == 14


async def test_unknown_paths_and_methods_say_so_in_problem_details() -> None:
    operator = AdminClient().operator()
    for path in ("", "nothing", "bans/", "bans/203.0.113.7", "keys", "stats/", "docs", "openapi.yaml"):
        assert (await operator.ask("GET", path)).status_code == 404, path
    assert "did you mean '/client'?" in (await operator.ask("GET", "client/")).json()["detail"]
    for method, path, allow in (
        ("PUT", "bans", "DELETE, GET, HEAD, PATCH, POST"),
        ("DELETE", "stats", "GET, HEAD"),
        ("GET", "keys/find", "POST"),
        ("OPTIONS", "keys/reset", "POST"),
    ):
        answer = await operator.ask(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert answer.json()["detail"] == f"{path} is asked with {allow}."
    head = await operator.ask("HEAD", "unheard")
    assert (head.status_code, head.content) == (404, b"")


async def test_head_is_get_without_a_body() -> None:
    operator = AdminClient().operator()
    head, get = await operator.ask("HEAD", "lists"), await operator.ask("GET", "lists")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(get.content))


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "expected"),
    [
        ("GET", "stats", {"window": "2m"}, None, "window: expected one of 1m, 5m, 10m, 30m, 1h, 3h, 6h, 12h, 24h"),
        ("GET", "stats", {"windw": "1m"}, None, "did you mean 'window'?"),
        ("GET", "clients", {"sort": "nearnes"}, None, "did you mean 'nearness'?"),
        ("GET", "bans", {"limit": ["1", "2"]}, None, "limit: it comes twice"),
        ("GET", "bans", {"limit": "٣"}, None, "limit: expected a whole number"),
        ("GET", "bans", {"limit": "0"}, None, "limit: expected a whole number, 1 to 500"),
        ("GET", "bans", {"cursor": "nonsense"}, None, "cursor: expected the `next` of the page before"),
        ("GET", "history", {"rule": "a", "route": "b"}, None, "give a rule or a route, not both"),
        ("GET", "client", {}, None, "key: it is missing; for example '203.0.113.7'"),
        ("GET", "client", {"key": "203.0.113.777"}, None, "'203.0.113.777' is no address or network"),
        ("GET", "events", {"after": "x"}, None, "the `next` of"),
        ("POST", "bans", {}, {"target": "300.1.1.1", "duration": "1h"}, "'300.1.1.1' is no address or network; write"),
        ("POST", "bans", {}, {"target": "0.0.0.0/0", "duration": "1h"}, "every address there is"),
        ("POST", "bans", {}, {"target": "1.2.3.4", "duration": "soon"}, "ban: duration"),
        ("POST", "bans", {}, {"target": "1.2.3.4", "duration": "401d"}, "at most 400 days"),
        ("POST", "bans", {}, {"target": "x" * 1_025, "duration": "1h"}, "expected at most 1024 characters, not 1025"),
        ("POST", "bans", {}, {"duration": "1h", "reason": 5}, "reason: expected text"),
        ("POST", "bans", {}, [], "body: expected a JSON object, not []"),
        ("POST", "keys/reset", {}, {"key": ""}, "key: expected text that is not empty"),
        ("POST", "bans", {"target": "1.2.3.4"}, {"duration": "1h"}, "the values in the body, and no query"),
        ("POST", "keys/find", {}, {"kind": "header", "name": "a b", "value": "s3cret"}, "expected a header name"),
        ("POST", "keys/charge", {}, {"key": "a", "rule": "all", "units": -1}, "units: expected a whole number, 1 to"),
    ],
)
async def test_a_value_that_cannot_be_used_is_named_with_what_was_expected(
    method: str, path: str, query: dict[str, Any], body: Any, expected: str
) -> None:
    answer = await AdminClient().operator().ask(method, path, json=body, **query)
    assert answer.status_code == 422
    assert expected in answer.json()["detail"]
    assert "s3cret" not in answer.text


async def test_an_answer_names_a_bounded_number_of_errors_in_a_bounded_number_of_characters() -> None:
    query = {f"{number}" + "x" * 1_000: "y" * 1_000 for number in range(30)}
    answer = await AdminClient().operator().ask("GET", "bans", **query)
    assert answer.status_code == 422
    assert len(answer.content) < 6_000


async def test_what_has_not_changed_is_not_sent_again(admin: AdminClient, operator: Operator) -> None:
    for path in ("rules", "lists", "bans"):
        first = await operator.ask("GET", path)
        again = await operator.ask("GET", path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    await admin.limiter.ban("user:1", "1h")
    changed = await operator.ask("GET", "bans", headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["total"]) == (200, 1)


async def test_two_routes_on_one_limiter_share_what_they_see() -> None:
    admin = AdminClient()
    again = Starlette(routes=[Mount("/admin", AdminRoutes(admin.limiter, token=TOKEN))])
    await admin.visit(times=3)
    for app in (admin.app, again):
        (client,) = (await admin.operator(app=app).get("clients"))["clients"]
        assert (client["key"], client["requests"]) == ("203.0.113.9", 3)


# -- the document --------------------------------------------------------------------------------------------------


def shape(page: dict[str, Any]) -> dict[str, Any]:
    """Return what a client of the API relies on: paths, parameters, and the fields of answers."""

    def fields(schema: dict[str, Any], name: str = "") -> set[str]:
        while "$ref" in schema:
            schema = page["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        inner = [(form, "") for form in schema.get("anyOf", ()) if form.get("type") != "null"]
        inner += [(form, f".{field}" if name else field) for field, form in schema.get("properties", {}).items()]
        inner += [(schema["items"], "[]")] if "items" in schema else []
        inner += [(schema["additionalProperties"], "{}")] if schema.get("additionalProperties") else []
        return set().union(*(fields(form, name + more) for form, more in inner)) if inner else {name}

    found = {}
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            takes = {parameter["name"] for parameter in operation.get("parameters", ())}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                takes |= fields(content["schema"])
            ((status, good),) = ((code, one) for code, one in operation["responses"].items() if code[0] == "2")
            answers = set().union(*(fields(content["schema"]) for content in good["content"].values()))
            name = f"{method.upper()} {path}"
            found[name] = {"takes": sorted(takes), "status": int(status), "answers": sorted(answers)}
    return found


async def test_urls_parameters_and_fields_are_those_of_today_and_the_schemas_are_schemas() -> None:
    page = await document()
    found = shape(page)
    assert found == {
        name: {**one, "takes": one["takes"].split(), "answers": one["answers"].split()} for name, one in TODAY.items()
    }
    for schema in page["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    identifiers = [operation["operationId"] for methods in page["paths"].values() for operation in methods.values()]
    assert len(set(identifiers)) == len(identifiers)


async def test_the_document_is_served_to_those_who_may_look() -> None:
    admin = AdminClient()
    assert (await admin.operator(READ_TOKEN).get("openapi.json"))["servers"] == [{"url": "/admin"}]
    assert (await admin.operator("x" * 20).ask("GET", "openapi.json")).status_code == 401


def test_generated_requests_are_answered_as_the_document_says_in_fastapi_too() -> None:
    app = FastAPI()
    limiter = Limiter()
    app.mount("/ops/admin", AdminRoutes(limiter, token=TOKEN))
    rules = [Rule("/ops/{rest:path}", exempt=True), Rule("*", "5/minute")]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=limiter)
    asyncio.run(_some_bans(limiter))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    schema = schemathesis.openapi.from_asgi("/ops/admin/openapi.json", app, headers=headers)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == len(OPERATIONS)
    for operation in operations:

        @hypothesis.settings(
            max_examples=12, deadline=None, database=None, derandomize=True,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )  # fmt: skip
        @hypothesis.given(operation.as_strategy())
        def ask(case: Any) -> None:
            answer = case.call(headers=headers)
            assert answer.status_code < 500, answer.text
            # It sends wrong tokens as well, and is told to wait after some of them; and texts that are no duration.
            others = ("ignored_auth", "positive_data_acceptance")
            case.validate_response(
                answer, excluded_checks=[schemathesis.checks.CHECKS.get_one(name) for name in others]
            )

        ask()


async def _some_bans(limiter: Limiter) -> None:
    for target in ("203.0.113.7", "user:42"):
        await limiter.ban(target, "1h")


# -- what clients have chosen --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 64])
async def test_a_key_of_any_signs_can_be_found_banned_extended_charged_reset_and_freed(
    key: str, admin: AdminClient, operator: Operator
) -> None:
    await admin.limiter.hit(key, "5/minute", rule="all")
    assert key in names((await operator.get("clients"))["clients"], "key")
    banned = await operator.ask("POST", "bans", json={"target": key, "duration": "1h", "reason": key})
    assert banned.json()["target"] == key
    assert banned.json()["reason"].isprintable()
    assert (await operator.get("bans", q=key[:3]))["total"] == 1
    seen = await operator.get("client", key=key)
    assert (seen["key"], seen["ban"]["target"]) == (key, key)
    assert (await operator.ask("PATCH", "bans", json={"target": key, "duration": "2h"})).status_code == 200
    assert (await operator.ask("DELETE", "bans", target=key)).json() == {"target": key}
    assert (await operator.ask("DELETE", "bans", target=key)).status_code == 404
    charged = await operator.ask("POST", "keys/charge", json={"key": key, "rule": "all", "units": 3})
    assert charged.json()["key"] == key
    assert (await operator.ask("POST", "keys/reset", json={"key": key})).json() == {"key": key, "forgotten": True}
    for event in (await operator.get("events"))["events"]:
        assert event["message"].isprintable()
        assert all(value.isprintable() for value in event["details"].values())


async def test_64_kilobytes_of_a_key_are_refused_or_digested_and_never_shown(
    admin: AdminClient, operator: Operator
) -> None:
    long = "<script>" * 8_192
    await admin.limiter.hit(long, "5/minute", rule="all")
    statuses = await admin.visit("/api/a", **{"X-API-Key": "k" * 60_000})
    assert statuses == [200]
    keys = names((await operator.get("clients"))["clients"], "key")
    assert all(len(key) <= 64 for key in keys)
    assert sorted(key.partition("#")[0] for key in keys if "#" in key) == ["header:x-api-key", "long"]
    for method, path, body in (
        ("POST", "bans", {"target": long[:60_000], "duration": "1h"}),
        ("POST", "keys/reset", {"key": long[:60_000]}),
    ):
        answer = await operator.ask(method, path, json=body)
        assert answer.status_code == 422
        assert len(answer.content) < 2_000
    assert (await operator.ask("POST", "bans", json={"target": long, "duration": "1h"})).status_code == 413


async def test_the_value_of_a_header_leads_to_the_key_that_gates_make_of_it(
    admin: AdminClient, operator: Operator
) -> None:
    await admin.visit("/api/a", times=7, **{"X-API-Key": "k123"})
    for name in ("X-API-Key", "x-api-key"):
        answer = await operator.ask("POST", "keys/find", json={"kind": "header", "name": name, "value": "k123"})
        key = answer.json()["key"]
        assert key.startswith("header:x-api-key#")
    client = await operator.get("client", key=key)
    assert len(client["windows"]) == 1, client
    (window,) = client["windows"]
    assert (window["rule"], window["limit"], window["used"], window["remaining"]) == ("api", "5/1m", 5, 0)
    other = await operator.ask("POST", "keys/find", json={"kind": "header", "name": "X-API-Key", "value": "k124"})
    assert other.json()["key"] != key
    assert "k123" not in str(client)
