"""What looks wrong at start-up or in the first requests is said once, with a code, and can be silenced."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, client_ip
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock
from slidegate.web.checks import WATCHED

from ..asgi import PEER, call, hello, page, statuses
from .frameworks import with_root


def middleware(app: Any = hello, **options: Any) -> RateLimitMiddleware:
    if "rules" not in options:
        options.setdefault("limits", "900/hour")
    return RateLimitMiddleware(app, **options)


def codes(found: RateLimitMiddleware) -> list[str]:
    return [finding.code for finding in found.findings]


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS", "GUNICORN_CMD_ARGS"):
        monkeypatch.delenv(variable, raising=False)


def test_what_is_right_is_not_found() -> None:
    shared = Limiter(MemoryStore(clock=FakeClock()))
    inner = middleware(limiter=shared, rules=[Rule("*", "9/s", name="inner"), Rule("*", "90/m")])
    rules = [Rule("/a", "1/s", final=True), Rule("*", "9/s", name="outer"), Rule("*", "90/m")]
    found = middleware(inner, limiter=shared, rules=rules, client=client_ip(["10.0.0.0/8"], ipv6_prefix=64))
    assert (codes(inner), codes(found)) == ([], [])
    assert codes(middleware(Starlette())) == []


def test_a_finding_is_logged_once_with_its_code_and_its_page(caplog: pytest.LogCaptureFixture) -> None:
    found = middleware(enabled=False)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("slidegate", logging.WARNING)
    assert record.getMessage() == f"slidegate: {found.findings[0]}"
    assert re.fullmatch(r"slidegate: SG110: .* \(enabled=False\): .*", record.getMessage())


# -- several processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "arguments", "where"),
    [
        ({"WEB_CONCURRENCY": "4"}, ["app.py"], "WEB_CONCURRENCY=4"),
        ({"GRANIAN_WORKERS": "2"}, [], "GRANIAN_WORKERS=2"),
        ({"GUNICORN_CMD_ARGS": "--bind 127.0.0.1 -w 2"}, [], "--workers 2 in GUNICORN_CMD_ARGS"),
        ({}, ["/lib/uvicorn/__main__.py", "app:app", "--workers=4"], "--workers 4 in the command line"),
        ({}, ["hypercorn", "-w4", "app:app"], "--workers 4 in the command line"),
        ({}, ["bin/granian", "app:app", "--workers", "4"], "--workers 4 in the command line"),
        ({}, ["uvicorn", "app:app", "--workers", "1"], ""),
        ({}, ["uvicorn", "app:app", "--workers"], ""),
        ({}, ["uvicorn", "app:app", "--limit-max-requests", "4"], ""),
        ({}, ["celery", "--workers", "4"], ""),
        ({"WEB_CONCURRENCY": "1"}, [], ""),
        ({"WEB_CONCURRENCY": "²"}, [], ""),
        ({}, [], ""),
    ],
)
def test_several_processes_with_a_memory_store_each_are_found(
    environment: dict[str, str], arguments: list[str], where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = middleware()
    assert codes(found) == ["SG103"] * bool(where)
    assert all(f"with {where} a client" in one.message for one in found.findings)
    assert codes(middleware(limiter=Limiter(LmdbStore(tmp_path)))) == []


# -- in the first requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["X-Forwarded-For", "Forwarded"])
async def test_a_proxy_that_nobody_trusts_is_found_once(field: str, caplog: pytest.LogCaptureFixture) -> None:
    found = middleware()
    for _ in range(3):
        await call(found, headers={field: "for=198.51.100.7"})
    assert codes(found) == ["SG102"]
    assert caplog.text.count("SG102") == 1
    assert field in found.findings[0].message


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"client": client_ip(["10.0.0.0/8"])}, "198.51.100.7"),
        ({}, f"{PEER}, 10.0.0.1"),
        ({"ignore_checks": ["SG102"]}, "198.51.100.7"),
    ],
)
async def test_a_proxy_that_is_trusted_or_read_by_the_server_is_no_finding(options: Any, field: str) -> None:
    found = middleware(**options)
    await call(found, headers={"X-Forwarded-For": field})
    assert codes(found) == []


async def test_only_the_first_requests_are_looked_at() -> None:
    found = middleware()
    await statuses(found, WATCHED)
    await call(found, client=None, server=None, headers={"X-Forwarded-For": "198.51.100.7"})
    assert codes(found) == []


# -- rules that no route meets -----------------------------------------------------------------------------------------


def shop(*more: BaseRoute, **options: Any) -> Starlette:
    routes: list[BaseRoute] = [
        Route("/login", page, methods=["GET", "POST"]),
        Route("/items/{id:int}", page),
        Route("/{id:int}/parts/{part}", page),
        WebSocketRoute("/talk", page),
        Mount("/admin", Starlette(routes=[Route("/users/{rest:path}", page)])),
    ]
    return Starlette(routes=[*routes, *more], **options)


async def unmet(app: ASGIApp, *rules: Rule, code: str = "SG123") -> list[str]:
    found = middleware(app, rules=rules)
    await call(found, "/")
    return [finding.message for finding in found.findings if finding.code == code]


UNMET: list[Any] = [
    *("/logni", "/login/", ["/login", "/signin"], "/items/x", "/{kind}/x", "/items"),
    *("/administration/{rest:path}", "/admin/logs", "/{place}/logs/{rest}"),
]


@pytest.mark.parametrize("rule", [*(Rule(path, "5/s") for path in UNMET), Rule("/logout", exempt=True)], ids=repr)
async def test_a_rule_that_no_route_can_meet_is_said_at_the_start(rule: Rule) -> None:
    (message,) = await unmet(shop(), Rule("*", "9/minute"), rule)
    assert repr(rule.label) in message


MET: list[Any] = [
    *("*", ["/login", "/items/8"], "/items/7", "/{kind}/7", "/items/{name}", "/{rest:path}", "/talk"),
    *("/admin/users/7/x", "/admin/{rest:path}", "/{place}/users/{name}", "/{kind}/parts/{id:int}"),
    "/behind/a/proxy/login",
]


@pytest.mark.parametrize(
    "rule",
    [
        *(Rule(path, "5/minute") for path in MET),
        *(Rule("/login", "5/minute", methods=[method]) for method in ("POST", "OPTIONS")),
        Rule("/wp-login.php", block=True),
    ],
    ids=repr,
)
async def test_a_rule_that_a_route_meets_or_that_meets_scanners_is_not(rule: Rule) -> None:
    assert await unmet(shop(), rule) == []


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (Rule("/login", "5/minute", methods=["DELETE", "PUT"]), "is for DELETE, PUT, but the path '/login' has only"),
        (Rule("/talk", "5/minute", connection="http"), "is for http, but the path '/talk' has only WS /talk"),
        (Rule("/login", "5/minute", connection="websocket"), "has only GET,POST /login"),
        (Rule("/items/{id}", exempt=True, methods=["POST"]), "has only GET /items/{id}"),
    ],
    ids=repr,
)
async def test_a_rule_whose_methods_no_route_takes_is_said_at_the_start(rule: Rule, told: str) -> None:
    (message,) = await unmet(shop(), rule, code="SG124")
    assert told in message
    assert await unmet(shop(), rule) == []


async def test_a_look_at_routes_that_fails_is_logged_and_breaks_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Strange(Route):
        """A route whose path is written in another language, which its own pattern does not show."""

        def __init__(self) -> None:
            super().__init__("/strange", page)
            self.path = self.path_format = "/{strange:thing}"

    app = middleware(Starlette(routes=[Strange()]), rules=[Rule("/other", "5/minute")])
    assert await statuses(app, 2, "/strange") == [200, 200]
    assert "start-up findings failed" in caplog.text


async def test_nothing_is_said_of_paths_where_something_answers_that_shows_no_routes(tmp_path: Path) -> None:
    rules = [Rule("/files/logo.png", "5/minute"), Rule("/deeper/other/x", "5/minute")]
    app = shop(
        Mount("/files", StaticFiles(directory=tmp_path)),
        Mount("/deeper", shop(Mount("/other", hello))),
        middleware=[Middleware(CORSMiddleware)],
    )
    assert await unmet(app, *rules) == []
    assert len(await unmet(app, *rules, Rule("/logni", "5/minute"))) == 1
    for unknown in (hello, Starlette()):
        assert await unmet(unknown, Rule("/logni", "5/minute")) == [] or unknown is not hello


@RateLimit.exempt
def free(request: object) -> PlainTextResponse:
    return PlainTextResponse("free")


EXEMPT = Starlette(routes=[Route("/free", free), Route("/a", page)])
BOTH = Starlette(routes=[Route("/free", RateLimit.exempt(RateLimit("5/minute")(page)))])
FREE = Rule("/free", exempt=True)
STARTS: list[tuple[Any, dict[str, Any], list[str]]] = [
    (EXEMPT, {"limits": "9/minute"}, ["SG125"]),
    (EXEMPT, {"rules": [Rule("/{x}", "9/minute")]}, ["SG125"]),
    (EXEMPT, {"rules": [Rule("/a", "9/minute")], "default_limits": "9/minute"}, []),
    (EXEMPT, {"rules": [FREE, Rule("*", "9/minute")]}, []),
    (BOTH, {"default_limits": "9/minute"}, ["SG128"]),
    (hello, {"default_limits": "9/minute"}, ["SG126"]),
    (hello, {"limits": "9/minute"}, []),
    (shop(), {"default_limits": "9/minute"}, []),
]


@pytest.mark.parametrize(("app", "options", "expected"), STARTS)
async def test_an_exempt_endpoint_with_a_limit_and_defaults_before_unknown_routes_are_said_at_the_start(
    app: ASGIApp, options: dict[str, Any], expected: list[str]
) -> None:
    found = RateLimitMiddleware(app, **options)
    await call(found, "/")
    assert codes(found) == expected


@pytest.mark.parametrize("options", [{"limits": "9/minute"}, {"default_limits": "9/minute"}], ids=str)
@pytest.mark.parametrize("answered", [False, True])
async def test_a_handler_that_refusals_of_the_middleware_never_reach_is_a_finding(
    answered: bool, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: Any, error: Any) -> PlainTextResponse:
        return PlainTextResponse("later", 429)

    inside = Middleware(RateLimitMiddleware, **options, **({"on_refused": answer} if answered else {}))
    await call(
        Starlette(routes=[Route("/", page)], middleware=[inside], exception_handlers={RateLimitExceeded: answer})
    )
    assert ("SG127" in caplog.text) is not answered


async def test_methods_that_no_route_of_a_limit_at_an_endpoint_takes_are_said_at_the_start() -> None:
    def app(*methods: str) -> Starlette:
        limited = RateLimit("5/minute", methods=list(methods))(page)
        return Starlette(routes=[Route("/x", limited, methods=["GET", "POST", "PUT"])])

    (message,) = await unmet(app("DELETE"), code="SG124")
    assert "DELETE" in message
    assert "GET,POST,PUT /x" in message
    assert await unmet(app("POST"), code="SG124") == []


async def test_a_path_written_with_the_root_of_the_application_is_met_by_no_route() -> None:
    app = with_root("/api")
    app.get("/health")(lambda: None)
    (message,) = await unmet(app, Rule("/api/health", exempt=True), Rule("/health", exempt=True))
    assert "'/api/health' of rule '/api/health' matches no route; did you mean '/health'?" in message


async def test_of_many_such_rules_ten_are_named_and_the_others_counted() -> None:
    found = await unmet(shop(), *(Rule(f"/nowhere/{number}", "5/minute") for number in range(2_000)))
    assert len(found) == 11
    assert found[-1] == "1990 more paths of rules match no route"
