"""One path, many spellings: no spelling is a way past a limit, and none but the exact one a way to an exemption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Host, Mount, Route
from starlette.staticfiles import StaticFiles

from slidegate import BanPolicy, RateLimitMiddleware, Rule

from ..asgi import call, hello, page
from .frameworks import with_root
from .test_paths import PLENTY, names

LOGIN = Route("/login", page)


def site(*routes: BaseRoute) -> Starlette:
    return Starlette(routes=routes)


def rooted(root: str, *routes: BaseRoute) -> FastAPI:
    app = with_root(root)
    app.router.routes.extend(routes)
    return app


TENANT = Mount("/{tenant}", rooted("/api", LOGIN))
CASES: list[tuple[Any, str, str, str]] = [
    # Application, path of the rule, path and root_path of the request.
    (site(LOGIN), "/login", "/login", ""),
    (site(LOGIN), "/login", "/api/login", "/api"),
    (site(LOGIN), "/api/login", "/api/login", "/api"),
    (site(LOGIN), "/login", "/login", "/api"),
    (site(LOGIN), "/api/login", "/login", "/api"),
    (rooted("/api", LOGIN), "/login", "/api/login", ""),
    (rooted("/api", LOGIN), "/login", "/login", ""),
    (rooted("/api", LOGIN), "/login", "/api/login", "/other"),
    (site(Mount("/", rooted("/api", LOGIN))), "/login", "/api/login", ""),
    (site(Mount("/", rooted("/api", LOGIN))), "/login", "/login", ""),
    (site(Mount("/", rooted("/api", LOGIN))), "/login", "/api/login", "/api"),
    (site(Host("example.org", rooted("/api", LOGIN))), "/login", "/api/login", ""),
    (site(Host("{any}.org", rooted("/api", LOGIN))), "/login", "/login", ""),
    (site(TENANT), "/{tenant}/login", "/api/login", ""),
    (site(Mount("/{tenant}", rooted("/api", Route("/{x}/login", page)))), "/{tenant}/{x}/login", "/a/login", ""),
    (site(Mount("/v1", rooted("/api", Route("/v1/login", page)))), "/v1/v1/login", "/v1/login", ""),
    (site(Mount("/v1", routes=[Mount("/{shop}", routes=[LOGIN])])), "/v1/{shop}/login", "/v1/a/login", ""),
    (site(Mount("/v1", routes=[Route("/v1/login", page)])), "/v1/v1/login", "/v1/login", "/api"),
]


@pytest.mark.parametrize(("app", "written", "path", "root"), CASES)
async def test_a_limit_holds_however_a_root_is_said(app: Any, written: str, path: str, root: str) -> None:
    middleware = RateLimitMiddleware(app, rules=[Rule(written, "1/minute")])
    found = [(await call(middleware, path, root_path=root, headers={"host": "example.org"})).status for _ in range(2)]
    assert found == [200, 429]


@pytest.mark.parametrize(
    "path", ["//login", "/./login", "/.//.//login", "///login", f"/{'./' * 1_000}login", "/login\n"]
)
async def test_slashes_dots_and_line_breaks_are_no_way_past_a_limit_and_no_way_to_an_exemption(path: str) -> None:
    assert await names(RateLimitMiddleware(hello, rules=[Rule("/login", PLENTY, name="it")]), path) == ["it"]
    rules = [Rule("/login", exempt=True), Rule("/login", PLENTY, name="it")]
    assert await names(RateLimitMiddleware(hello, rules=rules), path) == ["it"]


WILD = ["/login\n", "/x\n/y", f"/{'./' * 3_000}x"]
TAME = ["/x/../y", "/login/..", "/../login", "/..", f"/{'./' * 1_100}x", f"/x/{'/' * 2_100}y"]


@pytest.mark.parametrize("path", [*WILD, *TAME], ids=lambda path: path[:9])
async def test_what_readers_make_several_texts_of_meets_every_limit_and_block_of_its_method(path: str) -> None:
    rules = [
        Rule("/x/{y}", exempt=True),
        Rule("/{rest:path}", exempt=True),
        Rule("/login", PLENTY, name="it"),
        Rule("/other", PLENTY, name="other", methods=["GET"]),
        Rule("/posts", PLENTY, name="posts", methods=["POST"]),
    ]
    assert await names(RateLimitMiddleware(hello, rules=rules), path) == ["it", "other"]
    blocking = RateLimitMiddleware(hello, rules=[Rule("/nowhere", block=True)])
    assert (await call(blocking, path, raw_path=b"/")).status == 403


HARMLESS = ["/.env/..", f"/{'./' * 3_000}.env", "/.env/../x"]
TRAPS = ["/.env\n", "/x/../.env", "/../.env", f"/{'./' * 1_100}.env"]


@pytest.mark.parametrize("path", [*HARMLESS, *TRAPS], ids=lambda path: path[:9])
async def test_what_readers_make_several_texts_of_meets_no_honeypot(path: str) -> None:
    policy = BanPolicy("3/1h", "1h", signals={"/.env": "ban"})
    middleware = RateLimitMiddleware(hello, rules=[], bans=policy)
    assert [(await call(middleware, path, raw_path=b"/")).status for _ in range(3)] == [200] * 3
    assert [(await call(middleware, "/.env")).status for _ in range(2)] == [403] * 2


@pytest.mark.parametrize("method", ["GET", "get", "Get", "gET"])
async def test_a_limit_takes_a_method_in_any_case_and_an_exemption_only_as_written(method: str) -> None:
    limit = Rule("/login", PLENTY, name="it", methods=["GET"])
    exempt = Rule("/login", exempt=True, methods=["GET"])
    assert await names(RateLimitMiddleware(hello, rules=[limit]), "/login", method) == ["it"]
    expected = [] if method == "GET" else ["it"]
    assert await names(RateLimitMiddleware(hello, rules=[exempt, limit]), "/login", method) == expected


@pytest.mark.parametrize("ends", [{"exempt": True}, {"limits": PLENTY, "final": True}], ids=str)
async def test_what_ends_the_list_does_so_for_its_own_text_alone(ends: dict[str, Any]) -> None:
    rules = [Rule("/login", name="first", **ends), Rule("/{any:path}", PLENTY, name="it")]
    middleware = RateLimitMiddleware(Starlette(routes=[LOGIN]), rules=rules)
    for path, root in (("/login", ""), ("/api/login", "/api")):
        assert "it" not in await names(middleware, path, root_path=root)
    for path in ("//login", "/./login", "/login/", "/login\n", "/LOGIN", "/login/.", "/login;x=1", "/%6cogin"):
        assert "it" in await names(middleware, path)


async def test_a_final_slash_counts_as_written_except_where_files_or_an_unknown_application_may_answer() -> None:
    rules = [Rule("/login", PLENTY, name="it"), Rule("/v1/login", PLENTY, name="below")]
    known = RateLimitMiddleware(Starlette(routes=[LOGIN, Mount("/v1", routes=[LOGIN])]), rules=rules)
    assert [await names(known, path) for path in ("/login/", "/v1/login/")] == [[], []]
    partly = RateLimitMiddleware(Starlette(routes=[LOGIN, Mount("/v1", app=hello)]), rules=rules)
    assert [await names(partly, path) for path in ("/login/", "/v1/login/")] == [[], ["below"]]
    unknown = RateLimitMiddleware(hello, rules=rules)
    assert [await names(unknown, path) for path in ("/login/", "/v1/login/")] == [["it"], ["below"]]


def spellings(random: Random, directory: str, count: int) -> Iterator[str]:
    """Yield paths of a file, with slashes and dots that a directory of files takes out again."""
    for _ in range(count):
        parts = ["files", "report.pdf"]
        for _ in range(random.randint(1, 3)):
            at = random.randint(1, len(parts) - 1)
            parts[at:at] = random.choice([[""], ["."], ["x", ".."], ["..", directory], [".", "..", directory]])
        yield "/" + "/".join(parts) + random.choice(["", "", "/", "/."])


async def test_no_spelling_of_a_file_gets_past_its_limit(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "report.pdf").write_text("figures")
    app = Starlette(routes=[Mount("/files", StaticFiles(directory=downloads))])
    middleware = RateLimitMiddleware(app, rules=[Rule("/files/report.pdf", PLENTY, name="it")])
    served = []
    for path in ["/files/../downloads/report.pdf", *spellings(Random(7), "downloads", 100)]:
        answer = await call(middleware, path, raw_path=b"/")
        served += [(path, "ratelimit-policy" in answer.headers)] * (answer.status == 200)
    assert len(served) > 50
    assert [path for path, counted in served if not counted] == []
