"""What looks wrong at start-up or in the first requests is said once, with a code."""

import os
import sys
from pathlib import Path
from signal import SIGINT
from subprocess import DEVNULL, Popen
from threading import current_thread
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Scope

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.web import file_watcher
from slidegate.web.routes import layers

from ..asgi import call, hello, page, statuses
from ..redis_servers import until
from .middlewares import FollowedFiles


def codes(found: RateLimitMiddleware) -> list[str]:
    return [finding.code for finding in found.findings]


# -- several processes -------------------------------------------------------------------------------------------------


SERVED = """
import os, uvicorn
from slidegate import RateLimitMiddleware

async def inner(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        found = [finding.message for finding in app.findings if finding.code == "SG103"]
        with open(os.environ["SAID"], "a") as said:
            said.write(f"{found}\\n")
        await send({"type": "lifespan.startup.complete"})
        await receive()

app = RateLimitMiddleware(inner, limits="9/minute")
if __name__ == "__main__":
    uvicorn.run("served:app", port=0, workers=int(os.environ["COUNT"]), log_config=None)
"""
SERVERS = {"uvicorn.run": ["served.py"], "hypercorn -c": ["-m", "hypercorn", "-c", "hypercorn.toml", "served:app"]}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="other systems do not show the children of a process")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("server", SERVERS)
def test_workers_that_no_argument_names_see_each_other(server: str, count: int, tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "hypercorn.toml").write_text(f'workers = {count}\nbind = "127.0.0.1:0"\n')
    environment = {**os.environ, "SAID": str(said), "COUNT": str(count), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = Popen([sys.executable, *SERVERS[server]], cwd=tmp_path, env=environment, stderr=DEVNULL)
    try:
        until(lambda: said.exists() and said.read_text().count("\n") == count, "all workers have started")
    finally:
        started.send_signal(SIGINT)
        started.wait(120)
    lines = said.read_text().splitlines()
    assert any(f"with 2 workers below process {started.pid} a client" in line for line in lines) is (count == 2)


# -- a middleware that is built for each route -------------------------------------------------------------------------


@pytest.mark.parametrize("limiter", [None, Limiter()])
@pytest.mark.parametrize("of_rule", [{}, {"name": "api"}])
@pytest.mark.parametrize("more", [{}, {"default_limits": "9/minute"}, {"name": "site"}])
async def test_the_third_middleware_of_the_same_options_that_counts_apart_is_found(
    limiter: Limiter | None, of_rule: dict[str, Any], more: dict[str, Any]
) -> None:
    rules = [Rule("*", "9/minute", **of_rule)]
    if limiter is not None:
        await limiter.reset_all()
    built = [RateLimitMiddleware(hello, rules=rules, limiter=limiter, **more) for _ in range(4)]
    for one in built:
        fields = (await call(one)).headers["ratelimit"]
    assert ["SG131" in codes(one) for one in built] == [False, False, "r=8" in fields, False]
    again = [RateLimitMiddleware(hello, rules=list(rules), limiter=limiter, **more) for _ in range(3)]
    assert "SG131" not in codes(again[2])


async def test_routes_of_starlette_with_a_middleware_each_are_as_they_are_written() -> None:
    several = [
        Route(path, page, middleware=[Middleware(RateLimitMiddleware, limits="9/minute")])
        for path in ("/a", "/b", "/c")
    ]
    app = Starlette(routes=several)
    for route in several:
        assert (await call(app, route.path)).status == 200
        (around,) = [layer for layer in layers(route.app) if isinstance(layer, RateLimitMiddleware)]
        assert codes(around) == []


# -- rules that no route meets -----------------------------------------------------------------------------------------


async def test_a_look_at_routes_that_fails_breaks_no_request() -> None:
    class Strange(Route):
        """A route that asks more than a path."""

        def matches(self, scope: Any) -> Any:
            if "client" in scope:
                return super().matches(scope)
            raise TypeError("another language")

    app = RateLimitMiddleware(Starlette(routes=[Strange("/strange", page)]), rules=[Rule("/other", "5/minute")])
    assert await statuses(app, 2, "/strange") == [200, 200]
    assert codes(app) == ["SG123"]


async def test_routes_are_compared_with_a_changed_file_before_it_is_in_force_and_in_no_request(tmp_path: Path) -> None:
    """With a thousand rules and some hundred routes this takes half a second."""
    compared: dict[str, str] = {}

    class Seen(Route):
        def matches(self, scope: Scope) -> Any:
            compared[scope["path"]] = current_thread().name
            return super().matches(scope)

    files, text = FollowedFiles(tmp_path), 'rules = [{{ path = "{}", limits = "9/minute" }}]'
    path = files.write("slidegate.toml", text.format("/before"))
    app = RateLimitMiddleware.from_file(Starlette(routes=[Seen("/a", page)]), path)
    await call(app, "/a")
    files.write("slidegate.toml", text.format("/after"))
    await files.visit(app)
    assert compared["/before"] == current_thread().name
    assert compared["/after"] == file_watcher.THREAD
    assert [finding.code for finding in app.findings] == ["SG123"]
