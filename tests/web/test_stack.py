"""A middleware in the stack of an application: agents that replace its parts, and stacks that are built again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slidegate import RateLimitMiddleware

from ..asgi import page, statuses

BOUND_S = 60
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "options": (RateLimitMiddleware, {"limits": "2/hour"}),
    "a subclass": (type("Own", (RateLimitMiddleware,), {}), {"limits": "2/hour"}),
    "a file": (RateLimitMiddleware.from_file, {"path": "slidegate.toml"}),
    "a file, by a subclass": (type("Own", (RateLimitMiddleware,), {}).from_file, {"path": "slidegate.toml"}),
}
"""Whatever an application may give to `add_middleware`, with its options."""


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slidegate.toml").write_text('limits = "2/hour"\n')
    monkeypatch.chdir(tmp_path)


# -- agents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", GIVEN)
async def test_an_agent_may_replace_the_call_of_what_is_given_to_an_application(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, options = GIVEN[given]
    assert isinstance(kind, type)
    before, traced = kind.__call__, list[str]()  # type: ignore[misc]

    async def traced_call(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        traced.append(type(self).__name__)
        await before(self, scope, receive, send)

    monkeypatch.setattr(kind, "__call__", traced_call)
    app = Starlette(routes=[Route("/", page)], middleware=[Middleware(kind, **options)])
    assert await statuses(app, 3) == [200, 200, 429]
    assert traced.count(kind.__name__) == 3


SENTRY = """
import sentry_sdk
sentry_sdk.init("http://key@127.0.0.1:9/1", traces_sample_rate=1.0, transport=lambda envelope: None)
from fastapi import FastAPI
from starlette.testclient import TestClient
from slidegate import RateLimitMiddleware
for limits in ({"limits": "2/hour"}, {"path": "slidegate.toml"}):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware.from_file if "path" in limits else RateLimitMiddleware, **limits)
    app.get("/")(lambda: "page")
    with TestClient(app) as client:
        print([client.get("/").status_code for _ in range(3)])
"""


def test_sentry_traces_a_middleware_with_options_and_one_of_a_file() -> None:
    ended = subprocess.run([sys.executable, "-c", SENTRY], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert ended.stdout == "[200, 200, 429]\n" * 2, ended.stderr
