"""The middleware as a piece of ASGI: what it judges, what it leaves alone, and how middlewares stack."""

import contextvars
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimitMiddleware, Rule

from ..asgi import attempt, call, hello, statuses


@pytest.mark.parametrize("of_a_file", [False, True])
@pytest.mark.parametrize("kind", ["lifespan", "foo"])
async def test_other_scope_types_pass_unchanged(kind: str, of_a_file: bool, tmp_path: Path) -> None:
    seen: list[Any] = []
    message = {"type": f"{kind}.startup.complete"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([scope, receive])
        await send(message)

    async def send(message: Any) -> None:
        seen.append(message)

    receive: Any = object()
    scope = {"type": kind, "state": {}}
    file = tmp_path / "slidegate.toml"
    file.write_text('limits = "1/hour"')
    made: Any = RateLimitMiddleware.from_file(app, file) if of_a_file else RateLimitMiddleware(app, limits="1/hour")
    await made(scope, receive, send)
    assert [*map(id, seen)] == [id(scope), id(receive), id(message)]
    assert scope == {"type": kind, "state": {}}


async def test_context_variables_streams_and_background_tasks_behave_as_without_the_middleware() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    done: list[str] = []

    async def chunks() -> Any:
        for word in ("a", "b", "c"):
            yield word

    async def stream(request: Request) -> StreamingResponse:
        user.set("inner")
        return StreamingResponse(chunks(), background=BackgroundTask(done.append, "task"))

    app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(RateLimitMiddleware, limits="9/hour")])
    answer = await call(app)
    assert answer.body == b"abc"
    assert user.get() == "inner"  # the application ran in the caller's own task and context
    assert done == ["task"]


async def test_a_condition_of_several_rules_is_asked_once_for_each_request() -> None:
    paths: list[str] = []

    def when(request: Any) -> bool:
        paths.append(request.url.path)
        return True

    rules = [Rule("/a", exempt=True, when=lambda request: False)]
    rules += [Rule("*", "9/hour", when=when, name=name) for name in ("one", "two")]
    app = RateLimitMiddleware(hello, rules=rules, bans=BanPolicy(signals={"refused": 1, "4xx": 1, "/honey": 1}))
    assert [await statuses(app, 1, path) for path in ("/a", "/b", "/b")] == [[200]] * 3
    assert paths == ["/a", "/b", "/b"]


async def test_an_answer_that_breaks_after_its_start_is_not_started_twice() -> None:
    class Broken(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            raise KeyError("half")

    app = RateLimitMiddleware(hello, limits="1/hour", on_refused=lambda request, decision: Broken("x"))
    await call(app)
    answer, error = await attempt(app)
    assert (repr(error), answer.messages) == ("KeyError('half')", [answer.start])


async def test_workers_that_create_middlewares_in_another_order_count_the_same_by_their_names(tmp_path: Path) -> None:
    for order, expected in (("ab", [200, 200, 200]), ("ba", [429, 429, 200])):
        async with Limiter.from_url(f"lmdb://{tmp_path}", deadline="30s") as limiter:
            apps = {name: RateLimitMiddleware(hello, limits="2/hour", limiter=limiter, name=name) for name in order}
            assert [(await call(apps[name])).status for name in "aab"] == expected


async def test_limits_without_a_name_in_two_middlewares_are_numbered_in_memory_and_an_error_on_a_shared_store(
    tmp_path: Path,
) -> None:
    shared = Limiter()
    apps = [RateLimitMiddleware(hello, limits="2/hour", limiter=shared) for _ in range(2)]
    assert [await statuses(app, 3) for app in apps] == [[200, 200, 429]] * 2
    async with Limiter.from_url(f"lmdb://{tmp_path}") as limiter:
        first = RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        with pytest.raises(ConfigurationError, match=r"limits without a name \('default'\).*name=\"admin\""):
            RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        del first
        assert RateLimitMiddleware(hello, limits="2/hour", limiter=limiter), "the other one is gone"
