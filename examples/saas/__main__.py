"""``python3 dev.py example saas``: a visit to an API whose customers have plans in a database, then the API itself."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from examples.serving import run
from slidegate import Limiter

from .app import make_app
from .visit import opened, visit

OPERATOR = os.environ.get("SAAS_OPERATOR") or secrets.token_urlsafe(32)


@asynccontextmanager
async def site() -> AsyncIterator[ASGIApp]:
    """Open the API, with one tenant; DATABASE_URL and SLIDEGATE_STORE say where it keeps customers and counts."""
    store = os.environ.get("SLIDEGATE_STORE", "memory://")
    async with opened(os.environ.get("DATABASE_URL", "")) as customers, Limiter.from_url(store) as limiter:
        tenant = f"tenant-{secrets.token_hex(3)}"
        print(f"{tenant} has the free plan and the API key {await customers.add(tenant, 'free')}")
        print(f"Operators show the token {OPERATOR}")
        yield make_app(limiter, customers, OPERATOR)


HINTS = [
    'curl -i -H "X-API-Key: THE-KEY" {url}/v1/words/window',
    'curl -i -H "X-API-Key: THE-KEY" {url}/v1/standing',
    'curl -i -X PUT -H "Authorization: Bearer THE-TOKEN" {url}/operators/tenants/THE-TENANT/plan/pro',
]

if __name__ == "__main__":
    sys.exit(run("saas", "An API whose customers have plans in a database.", visit, site, HINTS))
