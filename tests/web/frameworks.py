"""The same two pages in several frameworks, of which some have routers that are not Starlette's.

Each function returns a site with ``/`` and ``/items/{n}``. What is given to it stands in the framework's own stack of
middleware, where it has one that takes ASGI.
"""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

Wrap = Callable[[ASGIApp], ASGIApp]


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    found = scope["path"] == "/" or scope["path"].startswith("/items/")
    await PlainTextResponse("page", 200 if found else 404)(scope, receive, send)


def home() -> str:
    return "page"


def item(n: int) -> str:
    return "page"


def add_pages(app: Any, items_path: str = "/items/{n}") -> Any:
    """Add both pages to an application that takes plain functions."""
    app.get("/")(home)
    app.get(items_path)(item)
    return app


def starlette(*stack: Wrap) -> Any:
    def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    routes = [Route("/", page), Route("/items/{n:int}", page)]
    return Starlette(routes=routes, middleware=[Middleware(wrap) for wrap in stack])


def fastapi(*stack: Wrap) -> Any:
    return add_pages(FastAPI(middleware=[Middleware(wrap) for wrap in stack]))


def litestar(*stack: Wrap) -> Any:
    from litestar import Litestar, get
    from litestar.params import FromPath

    @get("/items/{n:int}", sync_to_thread=False)
    def items(n: FromPath[int]) -> str:
        return "page"

    return Litestar([get("/", sync_to_thread=False)(home), items], middleware=stack, openapi_config=None)


def quart(*stack: Wrap) -> Any:
    from quart import Quart

    app = add_pages(Quart("site"), "/items/<int:n>")
    for wrap in stack:
        app.asgi_app = wrap(app.asgi_app)
    return app


def django() -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path

    async def page(request: Any, **values: int) -> HttpResponse:
        return HttpResponse("page")

    if not settings.configured:
        settings.configure()
        django.setup()
    urls: Any = ModuleType("slidegate_tests_urls")
    urls.urlpatterns = [path("", page), path("items/<int:n>", page)]
    sys.modules[urls.__name__] = urls
    # Another test of this process may have configured it for an application of its own.
    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS, settings.SECRET_KEY = urls.__name__, ["*"], "secret"
    return get_asgi_application()


def fasthtml(*stack: Wrap) -> Any:
    from fasthtml.common import FastHTML

    return add_pages(FastHTML(middleware=[Middleware(wrap) for wrap in stack], secret_key="secret"))


UNKNOWN: Final[Mapping[str, Callable[..., Any]]] = {
    "bare": lambda: bare,
    "litestar": litestar,
    "quart": quart,
    "django": django,
}
"""Those whose routes are not Starlette's."""
KNOWN: Final[Mapping[str, Callable[..., Any]]] = {"starlette": starlette, "fastapi": fastapi, "fasthtml": fasthtml}
STACKS: Final = ("starlette", "fastapi", "fasthtml", "litestar", "quart")
"""Those that take ASGI middleware in a stack of their own."""
