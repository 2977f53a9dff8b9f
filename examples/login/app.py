"""A site with a login, and the tools of its operators behind their door."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from slidegate import Limiter, RateLimit, client_ip
from slidegate.admin import AdminRoutes
from slidegate.dashboard import Dashboard

from .accounts import DEVICE_S, Accounts, Devices
from .protection import is_wrong, subjects

PER_ACCOUNT = "10/hour"
"""Wrong passwords for one account, from all over the world together."""
LARGEST_FORM = 4_096
DEVICE = "device"
"""The name of the cookie by which a device is known."""
FORM = """<!doctype html><html lang=en><title>Log in</title><h1>Log in</h1>
<form method=post action=/login><p><label>Name <input name=name autocomplete=username></label>
<p><label>Password <input name=password type=password autocomplete=current-password></label><p><button>Log in</button>
</form></html>"""


async def home(request: Request) -> HTMLResponse:
    """Show the form."""
    return HTMLResponse(FORM)


async def fields(request: HTTPConnection) -> tuple[str, str] | None:
    """Return name and password of a form; None if it is larger than ours, or does not say how large it is."""
    length = request.headers.get("Content-Length", "")
    if not isinstance(request, Request) or not (
        length.isascii() and length.isdecimal() and len(length) < 10 and int(length) <= LARGEST_FORM
    ):
        return None
    try:
        form = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=10)
    except ValueError:
        return None
    return form.get("name", [""])[0], form.get("password", [""])[0]


class Login:
    """The endpoint of the login.

    Args:
        accounts: Checks passwords.
        devices: Knows devices.
    """

    def __init__(self, accounts: Accounts, devices: Devices) -> None:
        self._accounts = accounts
        self._devices = devices

    def route(self) -> Route:
        """Return the route, held to the limit of each account."""
        limit = RateLimit(PER_ACCOUNT, key=self.account, count_if=is_wrong, name="account")

        @limit
        async def login(request: Request) -> Response:
            return await self.answer(request)

        return Route("/login", login, methods=["POST"])

    async def account(self, request: HTTPConnection) -> str | None:
        """Return the account that is tried, unless its owner has logged in from this device before.

        So a thousand strangers can spend the limit of an account, and its owner gets in all the same.
        """
        found = await fields(request)
        if found is None or self._devices.knows(request.cookies.get(DEVICE, ""), found[0]):
            return None
        return f"account:{found[0]}"

    async def answer(self, request: Request) -> Response:
        """Check name and password."""
        found = await fields(request)
        if found is None:
            return PlainTextResponse("this form is none of ours\n", 413)
        name, password = found
        if not await self._accounts.check(name, password):
            return PlainTextResponse("wrong name or password\n", 401)
        answer = PlainTextResponse(f"welcome, {name}\n")
        secure = request.url.scheme == "https"
        answer.set_cookie(
            DEVICE, self._devices.cookie_for(name), DEVICE_S, httponly=True, samesite="lax", secure=secure
        )
        return answer


def make_app(
    limiter: Limiter,
    accounts: Accounts,
    *,
    secret: str,
    token: str,
    read_token: str | None = None,
    proxies: Sequence[str] = (),
) -> ASGIApp:
    """Return the site behind its middleware.

    Args:
        limiter: Counts requests and keeps bans.
        accounts: The accounts into which people log in.
        secret: The key with which devices are signed.
        token: The token of operators, who may look and change; 16 characters or more.
        read_token: The token of people who may look.
        proxies: The networks of proxies that may name the client.
    """
    client = client_ip(trusted=proxies)
    site = Starlette(
        routes=[
            Route("/", home),
            Login(accounts, Devices(secret)).route(),
            Mount("/admin", AdminRoutes(limiter, token=token, read_token=read_token, client=client)),
            Mount("/dashboard", Dashboard(limiter, token=token, read_token=read_token, client=client)),
        ]
    )
    return subjects(site, limiter, proxies)
