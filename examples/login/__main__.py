"""``python3 dev.py example login``: a bad week for a login, then the site itself."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from examples.serving import HOST, run
from slidegate import Limiter

from .accounts import Accounts
from .app import make_app
from .visit import PASSWORD, visit

TOKEN = os.environ.get("SLIDEGATE_TOKEN") or secrets.token_urlsafe(32)
SECRET = os.environ.get("DEVICE_SECRET") or secrets.token_urlsafe(32)


@asynccontextmanager
async def site() -> AsyncIterator[ASGIApp]:
    """Open the site with one account; SLIDEGATE_STORE says where it counts, SLIDEGATE_READ_TOKEN who may look."""
    accounts = Accounts()
    accounts.add("ann", PASSWORD)
    print(f"ann has the password {PASSWORD!r}; operators show the token {TOKEN}")
    async with Limiter.from_url(os.environ.get("SLIDEGATE_STORE", "memory://")) as limiter:
        read_token = os.environ.get("SLIDEGATE_READ_TOKEN")
        # A person at this machine may say in X-Forwarded-For that they are somebody else.
        yield make_app(limiter, accounts, secret=SECRET, token=TOKEN, read_token=read_token, proxies=[HOST])


HINTS = [
    "{url}/ is the login, and {url}/dashboard/ the dashboard",
    'curl -i -H "X-Forwarded-For: 203.0.113.9" -d "name=ann&password=guess" {url}/login',
    'curl -i -H "X-Forwarded-For: 203.0.113.9" {url}/.aws/credentials',
    'curl -H "Authorization: Bearer THE-TOKEN" {url}/admin/bans',
]

if __name__ == "__main__":
    sys.exit(run("login", "A login that holds out against guessers.", visit, site, HINTS))
