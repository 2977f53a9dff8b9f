"""The kinds of clients that transports are for: of httpx and of httpx2, that await and that block."""

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from anyio.to_thread import run_sync


class Kind(NamedTuple):
    """A kind of clients.

    Attributes:
        name: The name of its library.
        is_sync: Whether it blocks.
    """

    name: str
    is_sync: bool

    @property
    def httpx(self) -> ModuleType:
        return import_module(self.name)

    @property
    def limited(self) -> ModuleType:
        return import_module(f"slidegate.{self.name}")

    @property
    def inner(self) -> Any:
        return self.httpx.HTTPTransport if self.is_sync else self.httpx.AsyncHTTPTransport

    def client(self, *, timeout: float = 5, **options: Any) -> Any:
        if self.is_sync:
            return self.httpx.Client(transport=self.limited.SyncLimitedTransport(**options), timeout=timeout)
        return self.httpx.AsyncClient(transport=self.limited.LimitedTransport(**options), timeout=timeout)

    async def call(self, of: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of a client or response, named as the one that is awaited: in a thread if it blocks."""
        if not self.is_sync:
            return await getattr(of, name)(*arguments, **options)
        return await run_sync(partial(getattr(of, name.removeprefix("a")), *arguments, **options))

    def answering(self) -> Any:
        return self.httpx.MockTransport(lambda request: self.httpx.Response(200))

    def __str__(self) -> str:
        return f"{self.name}-{'sync' if self.is_sync else 'async'}"


ASYNC = [Kind("httpx", is_sync=False), Kind("httpx2", is_sync=False)]
SYNC = [Kind("httpx", is_sync=True), Kind("httpx2", is_sync=True)]


@pytest.fixture(params=[*ASYNC, *SYNC], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """All kinds, for each test that names none."""
    kind: Kind = request.param
    return kind
