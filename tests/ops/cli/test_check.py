"""`slidegate check`: findings in files and applications, output formats and exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router

from slidegate import ConfigurationError, RateLimitMiddleware
from slidegate.ops.cli import check

from ...redis_servers import RedisServer, needs_redis
from ...web import frameworks
from . import apps
from .command import ROOT, Command, create_store

APPS = "tests.ops.cli.apps"


def findings(slidegate: Command, *arguments: str) -> list[dict[str, str]]:
    """Return the findings of a check, and compare its exit code with them."""
    ended = slidegate("check", "--json", *arguments)
    assert ended.code == (1 if ended.rows else 0)
    return ended.rows


def test_healthy_application_has_no_findings_and_is_started_and_stopped(slidegate: Command) -> None:
    apps.events.clear()
    assert findings(slidegate, f"{APPS}:healthy") == []
    assert apps.events == ["start", "end"]
    assert slidegate("check", f"{APPS}:healthy") == (0, "Nothing was found.\n", "")


@pytest.mark.parametrize(
    ("app", "code", "message"),
    [
        ("bare", "SG201", "no RateLimitMiddleware"),
        ("no_lifespan", "SG201", "no RateLimitMiddleware"),
        ("half", "SG123", "path '/two' of rule"),
    ],
)
def test_each_mistake_of_an_application_is_one_finding(app: str, code: str, message: str, slidegate: Command) -> None:
    (finding,) = findings(slidegate, f"{APPS}:{app}")
    assert finding["code"] == code
    assert message in finding["message"]


# -- middlewares, wherever they are ------------------------------------------------------------------------------------


def limited(app: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limits="600/minute")


def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("page")


def mounted() -> Starlette:
    """A mounted application builds its stack at its first request."""
    return Starlette(routes=[Mount("/v1", Starlette(middleware=[Middleware(limited)]))])


def of_a_route() -> Starlette:
    return Starlette(routes=[Host("example.com", Router([Route("/", page, middleware=[Middleware(limited)])]))])


def of_an_included_router() -> FastAPI:
    router, app = APIRouter(), FastAPI()
    router.routes.append(Mount("/v1", limited(frameworks.bare)))
    app.include_router(router)
    return app


def of_a_closure() -> Any:
    inside = limited(frameworks.bare)

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await inside(scope, receive, send)

    return wrapped


HIDDEN = [mounted, of_a_route, of_an_included_router, of_a_closure]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Makes an application importable; returns the target."""

    def importable(app: Any) -> str:
        module: Any = ModuleType("tests_served")
        module.app = app
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return f"{module.__name__}:app"

    return importable


@pytest.mark.parametrize("make", HIDDEN, ids=lambda make: make.__name__)
def test_middleware_is_found_wherever_it_is(
    make: Callable[[], Any], served: Callable[[Any], str], slidegate: Command
) -> None:
    assert findings(slidegate, served(make())) == []


@pytest.fixture
def _logging_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the changes that the startup of Litestar makes to the log."""
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    monkeypatch.setattr(logging.root, "level", logging.root.level)


@pytest.mark.usefixtures("_logging_unchanged")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", frameworks.STACKS)
def test_middleware_in_the_stack_of_a_framework_is_found(
    name: str, served: Callable[[Any], str], slidegate: Command
) -> None:
    make = {**frameworks.KNOWN, **frameworks.UNKNOWN}[name]
    expected = ["SG131"] if name == "litestar" else []  # it builds the middleware for each of its routes
    assert [finding["code"] for finding in findings(slidegate, served(make(limited)))] == expected
    (finding,) = findings(slidegate, served(make()))
    assert finding["code"] == "SG201"


@pytest.mark.usefixtures("_logging_unchanged")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", frameworks.UNKNOWN)
def test_middleware_around_an_application_is_found(name: str, served: Callable[[Any], str], slidegate: Command) -> None:
    app = frameworks.UNKNOWN[name]()
    assert findings(slidegate, served(limited(app))) == []


def test_an_application_that_another_one_does_not_hold_is_not_searched(
    served: Callable[[Any], str], slidegate: Command
) -> None:
    target = served(apps.bare)
    sys.modules["tests_served"].other = apps.healthy  # type: ignore[attr-defined]
    (finding,) = findings(slidegate, target)
    assert finding["code"] == "SG201"


# -- stores ------------------------------------------------------------------------------------------------------------


def file_with(store: str, directory: Path) -> str:
    file = directory / "slidegate.toml"
    file.write_text(f'store = "{store}"\nrules = [{{ path = "*", limits = "5/m" }}]\n', "utf-8")
    return str(file)


@pytest.mark.parametrize("kind", ["lmdb", pytest.param("unix", marks=needs_redis)])
def test_store_that_cannot_be_read_is_a_finding_that_names_it(kind: str, tmp_path: Path, slidegate: Command) -> None:
    # A Unix socket that does not exist, because another program could listen on a free port.
    url = f"unix://{tmp_path}/none.sock"
    if kind == "lmdb":
        url = create_store(f"lmdb://{tmp_path}/store")
        (tmp_path / "store" / "data.mdb").write_text("no store\n" * 2_000)
    (finding,) = findings(slidegate, file_with(url, tmp_path))
    assert finding["code"] == "SG202"
    assert url.partition("://")[2] in finding["message"]


@pytest.mark.parametrize("named", ["file", "SLIDEGATE_STORE", "ELSEWHERE"])
def test_store_that_does_not_exist_is_named_and_not_created(
    named: str, tmp_path: Path, slidegate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = tmp_path / "slidegate.toml", f"lmdb://{tmp_path}/store"
    head = {"file": f'store = "{url}"\n', "SLIDEGATE_STORE": "", "ELSEWHERE": 'store = { env = "ELSEWHERE" }\n'}
    file.write_text(f'{head[named]}limits = "5/m"\n', "utf-8")
    monkeypatch.setenv(named, url)
    monkeypatch.setenv("WEB_CONCURRENCY", "4")  # the file names no memory store, so SG103 does not apply
    ended = slidegate("check", str(file))
    assert (ended.code, ended.out) == (0, "Nothing was found.\n")
    assert "does not exist yet" in ended.err
    assert str(tmp_path / "store") in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["slidegate.toml"]
    create_store(url)
    assert slidegate("check", str(file)) == (0, "Nothing was found.\n", "")


@needs_redis
def test_redis_without_data_is_a_store_that_does_not_exist(
    server: RedisServer, tmp_path: Path, slidegate: Command
) -> None:
    url = f"{server.url}?prefix={tmp_path.name}"
    ended = slidegate("check", file_with(url, tmp_path))
    assert (ended.code, ended.out) == (0, "Nothing was found.\n")
    assert "does not exist yet" in ended.err
    assert server.command("KEYS", f"{tmp_path.name}*") == []


def test_memory_stores_of_several_workers_are_a_finding(
    tmp_path: Path, slidegate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    (finding,) = findings(slidegate, file_with("memory://", tmp_path))
    assert finding["code"] == "SG103"


@pytest.mark.parametrize("address", ["lmdb://./counts", "lmdb:counts", "lmdb:///nowhere/counts?max_kyes=5"])
def test_invalid_address_is_an_error_that_names_the_file(address: str, tmp_path: Path, slidegate: Command) -> None:
    file = file_with(address, tmp_path)
    ended = slidegate("check", file)
    assert ended.code == 1
    assert file in ended.err
    assert "store address" in ended.err


# -- targets that cannot be checked ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"{APPS}:broken"], "5/minit"),
        ([f"{APPS}:failing"], "startup failed: RuntimeError: no database"),
        ([f"{APPS}:events"], "is not an ASGI application"),
        ([f"{APPS}:wsgi"], "is not an ASGI application"),
        ([f"{APPS}:unbuildable"], "TypeError"),
        ([f"{APPS}:none"], "none"),
        (["no_such_module:app"], "no_such_module"),
        (["no_such.toml"], "cannot read no_such.toml: No such file"),
        ([str(ROOT / "LICENSE")], "line 1"),
        ([f"{APPS}:raising", "--factory"], "RuntimeError: a b\\x1b[2J"),
    ],
)
def test_target_that_cannot_be_used_is_one_sentence(arguments: list[str], message: str, slidegate: Command) -> None:
    ended = slidegate("check", *arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert message in ended.err


@pytest.mark.parametrize(
    "text",
    [
        'limts = "5/minute"\n',
        '[[rules]]\npath = "*"\nlimits = "5/minut"\n',
        'limits = "5/minute"\nblocklist = "no.netset"\n',
        'limits = "5/minute"\n[bans.s]\nduraton = "1h"\n',
        'limits = "5/minute"\nstore = "nosuch://"\n',
        "limits = ",
    ],
)
def test_command_and_middleware_say_the_same_of_a_file(text: str, tmp_path: Path, slidegate: Command) -> None:
    path = tmp_path / "slidegate.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        RateLimitMiddleware.from_file(no_app, path)
    ended = slidegate("check", str(path))
    assert (ended.code, ended.err) == (1, f"Error: {caught.value}\n")


async def no_app(*arguments: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("target", "meant"),
    [("saas", "saas:app"), ("shop/api.py", "shop.api:app"), ("shop.api", "shop.api:app")],
)
def test_name_of_a_module_alone_is_wrong_usage_with_a_suggestion(
    target: str, meant: str, tmp_path: Path, slidegate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saas.py").write_text("app = None\n")
    (tmp_path / "saas").mkdir()  # a package of that name, not a configuration file
    monkeypatch.chdir(tmp_path)
    ended = slidegate("check", target)
    assert ended.code == 2
    assert f"did you mean {meant!r}" in ended.err


def test_startup_that_never_ends_is_an_error(slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "START_TIMEOUT_S", 0.01)
    ended = slidegate("check", f"{APPS}:stuck")
    assert ended.code == 1
    assert "startup took longer" in ended.err
