"""What cannot work is refused where it is written, or ends the start of its server.

messages.txt has each message whole, as its user reads it.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route

import slidegate
from slidegate import BanPolicy, ConfigurationError, RateLimitMiddleware, Rule

from ..asgi import attempt, call, hello, page, scope_of, send_scope
from ..remote_stores import RemoteStore
from ..test_messages import message_of
from .middlewares import FORMS, operators

MESSAGES = Path(__file__).with_name("messages.txt")


def middleware(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **options)


def bans(**options: Any) -> RateLimitMiddleware:
    return middleware(bans=BanPolicy(**options))


async def rows() -> Any:
    yield "a"


class Windows(RemoteStore):
    """A store that counts no permits."""

    permits_held: Any = None


OWN = [call, middleware, bans, rows, page, Windows, Starlette, GZipMiddleware, Middleware, Route]
NAMES = {
    **{name: getattr(slidegate, name) for name in slidegate.__all__},
    **{known.__name__: known for known in OWN},
    "FORMS": FORMS,
    "REQUEST": Request(scope_of()),
    "run": asyncio.run,
    "RULE": Rule("*", "5/minute"),
    "TOOLS": slidegate.mcp_tool("search", "export", validated=True),
}


def test_each_value_that_cannot_work_is_refused_with_what_would(
    tmp_path: Path, texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    operators(Path())
    names = {**NAMES, "ASN": slidegate.network("asn.mmdb")}
    texts(MESSAGES, ">>> ", lambda expression: message_of(expression, names))


# -- what cannot be made ends the start of its server ------------------------------------------------------------------


BOUND_S = 120
"""How long a hang may last; a server that starts on a busy machine takes some seconds."""


class Strict(RateLimitMiddleware):
    """A middleware of somebody's own, whose constructor goes on after ours."""

    def __init__(self, app: Any, *, limits: str) -> None:
        super().__init__(app, limits=limits)
        self.tightest = min(limit.amount for rule in self.rules for limit in rule.limits)


class Around(GZipMiddleware):
    """A middleware of somebody's own, which makes a middleware around what it is given."""

    def __init__(self, app: Any) -> None:
        super().__init__(RateLimitMiddleware(app, limits="ten/minute"))


FROM_FILE = RateLimitMiddleware.from_file
TEN, FIVE = 'limits = "ten/minute"', 'limits = "5/minute"'
LOST = 'store = "lmdb:///dev/null/middleware"\nlimits = "5/minute"'
ADDITIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "limits": (RateLimitMiddleware, {"limits": "ten/minute"}, "'ten/minute'"),
    "an option": (RateLimitMiddleware, {"limit": "5/minute"}, "unknown option 'limit'"),
    "a subclass": (Strict, {"limits": "ten/minute"}, "'ten/minute'"),
    "another's": (Around, {}, "'ten/minute'"),
    "a factory": (lambda app: RateLimitMiddleware(app, limits="ten/minute"), {}, "'ten/minute'"),
    "no file": (FROM_FILE, {"path": None}, "slidegate.toml"),
    "a bad file": (FROM_FILE, {"path": TEN}, "ten/minute"),
    "a store in a file": (FROM_FILE, {"path": LOST}, "/dev/null/middleware"),
    "an option beside a file": (FROM_FILE, {"path": FIVE, "limits": "1/s"}, "from_file: write limits into the file"),
    "limits beside a file": (FROM_FILE, {"path": FIVE, "limits": "2/hour"}, "write limits into the file, not beside"),
}
"""A middleware, its options (a path stands for a file with that text), and a part of the message."""


def add(app: Any, what: str, directory: Path) -> str:
    kind, options, part = ADDITIONS[what]
    if "path" in options:
        path = directory / "slidegate.toml"
        if options["path"] is not None:
            path.write_text(options["path"], "utf-8")
        options = {**options, "path": path}
    app.add_middleware(GZipMiddleware)  # ours is around it
    app.add_middleware(kind, **options)
    return part


async def started(app: Any) -> tuple[list[Any], Exception | None]:
    async with asyncio.timeout(BOUND_S):
        answer, error = await attempt(app, type="lifespan", state={})
    return answer.messages, error


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("what", ADDITIONS)
async def test_what_cannot_be_made_ends_the_start_or_each_request(what: str, framework: Any, tmp_path: Path) -> None:
    served, app = Starlette(routes=[Route("/", page)]), framework()
    part = add(app, what, tmp_path)
    said, error = await started(app)
    assert [message["type"] for message in said] == ["lifespan.startup.failed"]
    assert part in said[0]["message"]
    assert error is not None
    assert str(error) in said[0]["message"]
    lengths = []
    for _ in range(3):
        with pytest.raises(ConfigurationError) as caught:
            await send_scope(app, scope_of("/"))
        assert caught.value is error
        lengths.append(len(caught.traceback))
    assert lengths[0] == lengths[-1], "each request makes the traceback longer"
    add(served, what, tmp_path)
    for target, path in ((served, "/"), (Starlette(routes=[Mount("/below", served)]), "/below/")) * 2:
        with pytest.raises(ConfigurationError, match=re.escape(part)):
            await send_scope(target, scope_of(path))


async def test_options_without_their_names_end_the_start() -> None:
    app = Starlette(middleware=[Middleware(RateLimitMiddleware, "5/minute")])  # type: ignore[arg-type]
    said, error = await started(app)
    assert said[0]["message"] == f"TypeError: {error}"


SERVERS = {
    "uvicorn": ["uvicorn", "site_app:app", "--port", "0"],
    # Where hypercorn 0.18 has workers, it loses the code with which they ended, whatever was wrong.
    "hypercorn": ["hypercorn", "site_app:app", "--workers", "0", "--bind", "127.0.0.1:0"],
    "granian": ["granian", "site_app:app", "--interface", "asgi", "--port", "0"],
}


@pytest.mark.parametrize("server", ["uvicorn", *(pytest.param(one, marks=pytest.mark.all) for one in [*SERVERS][1:])])
def test_a_server_with_a_broken_configuration_ends_with_its_message(server: str, tmp_path: Path) -> None:
    (tmp_path / "site_app.py").write_text(
        "from starlette.applications import Starlette\nfrom slidegate import RateLimitMiddleware\n"
        'app = Starlette()\napp.add_middleware(RateLimitMiddleware, limits="ten/minute")\n',
        "utf-8",
    )
    command = [sys.executable, "-m", *SERVERS[server]]
    ended = subprocess.run(command, cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True, timeout=BOUND_S, check=False)
    assert ended.returncode != 0, ended.stdout
    assert "ten/minute" in ended.stdout
