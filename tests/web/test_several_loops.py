"""Several event loops of one process share a middleware: what one of them changes counts for all, at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from slidegate import Networks, RateLimitMiddleware, Rule, client_ip
from slidegate._watcher import version_of

from ..asgi import Answer, call, hello
from ..turns import interrupted, turning_locks

Both = tuple[Callable[[], object], Callable[[], object]]
CLIENT = ("203.0.113.9", 1)


def get(app: ASGIApp, path: str = "/") -> Answer:
    """Return the answer to a request on an event loop of its own."""
    return asyncio.run(call(app, path, client=CLIENT))


@pytest.mark.parametrize("trusted", [(), ("203.0.113.0/24",)])
def test_who_is_newly_on_a_list_is_refused_at_once(tmp_path: Path, trusted: tuple[str, ...]) -> None:
    path, apps = tmp_path / "blocked.netset", list[RateLimitMiddleware]()

    def begin() -> Both:
        path.write_text("192.0.2.0/24")
        networks = Networks.from_file(path, private=True)
        assert networks.file is not None
        file = networks.file
        app = RateLimitMiddleware(hello, limits="9/minute", blocklist=networks, client=client_ip(trusted=trusted))
        apps.append(app)

        def change() -> None:
            path.write_text("203.0.113.0/24")
            file._read_again(version_of(str(path)))
            assert get(app).status == 403

        return lambda: get(app), change

    with turning_locks():
        for point in interrupted(begin, ["slidegate/web/clients.py"]):
            assert get(apps.pop()).status == 403, point


def test_an_amount_that_is_changed_is_shown_at_once() -> None:
    apps = list[RateLimitMiddleware]()

    def begin() -> Both:
        app = RateLimitMiddleware(hello, rules=[Rule("/", "80/minute", name="path")], default_limits="90/minute")
        apps.append(app)
        return lambda: get(app), lambda: asyncio.run(app.limiter.override("path", "7/minute", "1h"))

    with turning_locks():
        for point in interrupted(begin, ["slidegate/web/rule_set.py", "slidegate/web/headers.py"]):
            headers = get(apps.pop()).headers
            assert ("q=7;" in headers["ratelimit-policy"], "r=5;" in headers["ratelimit"]) == (True, True), point


def test_off_is_off_at_once() -> None:
    apps = list[RateLimitMiddleware]()

    def begin() -> Both:
        app = RateLimitMiddleware(hello, blocklist=["203.0.113.0/24"])
        app.policy.findings.requests_left = 0
        apps.append(app)
        return lambda: get(app), lambda: asyncio.run(app.limiter.override("*", "off", "1h"))

    with turning_locks():
        for point in interrupted(begin, ["slidegate/web/middleware.py"]):
            assert get(apps.pop()).status == 200, point
