"""Findings about processes and about a middleware that is built for each route.

tests/web/scenarios/findings.txt has examples of each message.
"""

import os
import sys
from pathlib import Path
from signal import SIGINT
from subprocess import DEVNULL, Popen
from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule

from ..asgi import call, hello
from ..redis_servers import until


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
WITH_WORKERS = {"uvicorn.run": ["served.py"], "hypercorn -c": ["-m", "hypercorn", "-c", "hypercorn.toml", "served:app"]}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="other systems do not show the children of a process")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("server", WITH_WORKERS)
def test_workers_that_no_argument_names_see_each_other(server: str, count: int, tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "hypercorn.toml").write_text(f'workers = {count}\nbind = "127.0.0.1:0"\n')
    environment = {**os.environ, "SAID": str(said), "COUNT": str(count), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = Popen([sys.executable, *WITH_WORKERS[server]], cwd=tmp_path, env=environment, stderr=DEVNULL)
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
