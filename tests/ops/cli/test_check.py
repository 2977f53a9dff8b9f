"""`slidegate check`: middlewares are found wherever they are; what it says is in the transcripts."""

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slidegate.ops.cli import check

from ...redis_servers import RedisServer, needs_redis
from ...web import frameworks
from . import apps
from .command import Command

Codes = Callable[[Any], list[str]]


@pytest.fixture
def codes(slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> Codes:
    """Returns the codes of the findings of an application that a module has."""

    def checked(app: Any) -> list[str]:
        module: Any = ModuleType("tests_served")
        module.app, module.other = app, apps.healthy  # the second is not part of the application
        monkeypatch.setitem(sys.modules, module.__name__, module)
        ended = slidegate("check", "--json", f"{module.__name__}:app")
        assert ended.code == (1 if ended.rows else 0)
        return [finding["code"] for finding in ended.rows]

    return checked


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", frameworks.STACKS)
def test_middleware_of_and_around_a_framework_is_found(
    name: str, codes: Codes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))  # the startup of Litestar changes both
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    make = {**frameworks.KNOWN, **frameworks.UNKNOWN}[name]
    # Litestar builds the middleware for each of its routes.
    assert codes(make(apps.limited)) == (["SG131"] if name == "litestar" else [])
    assert codes(make()) == ["SG201"]
    if name in frameworks.UNKNOWN:
        assert codes(apps.limited(make())) == []


def test_the_lifespan_of_an_application_is_run(codes: Codes) -> None:
    apps.events.clear()
    assert codes(apps.healthy) == []
    assert apps.events == ["start", "end"]


@needs_redis
def test_redis_without_data_is_a_store_that_does_not_exist(
    server: RedisServer, tmp_path: Path, slidegate: Command
) -> None:
    file = tmp_path / "slidegate.toml"
    file.write_text(f'store = "{server.url}?prefix={tmp_path.name}"\nlimits = "5/m"\n', "utf-8")
    ended = slidegate("check", str(file))
    assert (ended.code, ended.out) == (0, "Nothing was found.\n")
    assert re.search("does not exist yet.*; the first worker creates it; check the database and the prefix", ended.err)
    assert server.command("KEYS", f"{tmp_path.name}*") == []


def test_startup_that_never_ends_is_an_error(slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "START_TIMEOUT_S", 0.01)
    ended = slidegate("check", "tests.ops.cli.apps:stuck")
    assert ended.code == 1
    assert "startup failed: it took longer" in ended.err
