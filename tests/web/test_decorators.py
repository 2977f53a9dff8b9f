"""Every limit that decorates a function holds, whatever else stands around the function."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import Depends, FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, everyone, header
from slidegate.testing import FakeClock

from ..asgi import PEER, call
from .middlewares import fields

CLIENTS = (PEER, "192.0.2.7")
KEYS: dict[str, Any] = {
    "client": None,
    "everyone": everyone,
    "header": header("X-Key"),
    "function": lambda request: f"user:{request.headers['x-key']}",
}


class Stacked(NamedTuple):
    """A limit in a stack of decorators."""

    amount: int
    key: str

    def of(self, client: str, value: str) -> str:
        return {"client": client, "everyone": "", "header": value, "function": value}[self.key]


def by_another_library(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **options: Any) -> Any:
        answer = function(*args, **options)
        return await answer if hasattr(answer, "__await__") else answer

    return wrapper


def by_a_sync_one(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


async def of_starlette(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


def of_starlette_in_a_thread(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


async def plain(number: int) -> int:
    return number


def in_a_thread(number: int) -> int:
    return number


async def with_request(number: int, request: Request) -> int:
    return number + len(request.headers) * 0


def in_a_thread_with_request(request: Request, number: int) -> int:
    return number + len(request.headers) * 0


OF_STARLETTE = (of_starlette, of_starlette_in_a_thread)
OF_FASTAPI = (plain, in_a_thread, with_request, in_a_thread_with_request)
OTHERS: tuple[Callable[[Any], Any], ...] = (by_another_library, by_a_sync_one, RateLimit.exempt)

limits = st.builds(Stacked, st.integers(1, 4), st.sampled_from([*KEYS]))


def is_hidden(stack: list[Any]) -> bool:
    """Return whether the route gets a function that is sync and returns what nobody awaits: no framework takes that."""
    return next(each for each in stack if each is not RateLimit.exempt) is by_a_sync_one


stacks = st.tuples(st.lists(limits, min_size=2, max_size=3), st.lists(st.sampled_from(OTHERS), max_size=2)).flatmap(
    lambda parts: st.permutations([*parts[0], *parts[1]]).filter(lambda stack: not is_hidden(stack))
)
requests = st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from("ab")), min_size=3, max_size=8)


def copy_of(function: Any) -> Any:
    """Return a copy of a function, which has no marks yet."""
    copied = type(function)(function.__code__, globals(), function.__name__, None, function.__closure__)
    return functools.wraps(function)(copied)


@given(st.sampled_from([*OF_STARLETTE, *OF_FASTAPI]), stacks, st.lists(limits, max_size=2), requests)
async def test_each_decorator_of_a_function_is_enforced_and_shown(
    function: Any, stack: list[Any], dependencies: list[Stacked], sent: list[tuple[str, str]]
) -> None:
    """`stack` is written from the top; FastAPI asks dependencies before."""
    names: dict[str, Stacked] = {}

    def rate_limit(limit: Stacked) -> RateLimit:
        names[f"limit{len(names)}"] = limit
        return RateLimit(f"{limit.amount}/hour", key=KEYS[limit.key], name=[*names][-1])

    app: Any = Starlette()
    if function in OF_STARLETTE:
        dependencies = []
    else:
        app = FastAPI()
    depends = [Depends(rate_limit(limit)) for limit in dependencies]
    decorators = [rate_limit(each) if isinstance(each, Stacked) else each for each in stack]
    endpoint = copy_of(function)
    for decorator in reversed(decorators):
        endpoint = decorator(endpoint)
    if isinstance(app, FastAPI):
        app.add_api_route("/{number}", endpoint, dependencies=depends)
    else:
        app.routes.append(Route("/{number}", endpoint))
    default_limits = "1000/hour"
    if RateLimit.exempt in stack:
        default_limits = "1/hour"
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock, wall_clock=clock))
    app.add_middleware(RateLimitMiddleware, limiter=limiter, default_limits=default_limits)

    counted: Counter[tuple[str, str]] = Counter()
    for client, value in sent:
        left: dict[str, int] = {}
        status = 200
        for name, limit in names.items():
            key = name, limit.of(client, value)
            counted[key] += 1
            left[name] = max(limit.amount - counted[key], 0)
            if counted[key] > limit.amount:  # what stands further out stays charged
                counted[key] -= 1
                status = 429
                break
        answer = await call(app, "/7", client=(client, 1), headers={"X-Key": value})
        shown = {name: params["r"] for name, params in fields(answer.headers["ratelimit"]) if name in names}
        assert (answer.status, shown) == (status, left)
