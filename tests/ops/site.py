"""An application behind a middleware, which metrics observe."""

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import call, page


class Site:
    """Items take 30 ms by its clock."""

    def __init__(self, rules: Sequence[Rule] | None = None, *, limiter: Limiter | None = None, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.limiter = limiter or Limiter(MemoryStore(clock=self.clock))
        self.app = Starlette(routes=[Route("/items/{id}", self.item), Route("/other", page, methods=["GET", "POST"])])
        rules = [Rule("*", "1000000/minute", name="all")] if rules is None else rules
        self.app.add_middleware(RateLimitMiddleware, limiter=self.limiter, rules=rules, **options)

    async def item(self, request: Request) -> PlainTextResponse:
        self.clock.advance("30ms")
        return PlainTextResponse("an item")

    async def visit(self, *paths: str, method: str = "GET", **more: Any) -> list[int]:
        """Request some paths one after the other; return the statuses."""
        return [(await call(self.app, path, method, **more)).status for path in paths]
