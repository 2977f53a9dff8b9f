"""``python3 dev.py example llm_gateway``: a visit to a gateway that charges tokens, then the gateway and its model."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from examples.serving import run, served
from slidegate import Limiter

from .app import Accounts, make_app
from .model import LIMIT, make_model
from .upstream import Upstream
from .visit import visit

KEY = os.environ.get("GATEWAY_KEY") or secrets.token_urlsafe(32)


@asynccontextmanager
async def site() -> AsyncIterator[ASGIApp]:
    """Open the gateway, with a model of its own and one account; SLIDEGATE_STORE says where it counts."""
    print(f"ann has the API key {KEY}")
    store = os.environ.get("SLIDEGATE_STORE", "memory://")
    async with served(make_model()) as model, Limiter.from_url(store) as limiter:
        yield make_app(limiter, Accounts({"ann": KEY}), Upstream(model.url, LIMIT))


HINTS = [
    """curl -N -H "Authorization: Bearer THE-KEY" --json '{{"prompt": "hello", "max_tokens": 9}}' {url}/v1/ask""",
    """curl -i -H "Authorization: Bearer THE-KEY" --json '{{"prompt": "hello", "max_tokens": 1500}}' {url}/v1/ask""",
]

if __name__ == "__main__":
    sys.exit(run("llm_gateway", "A gateway to a language model that charges tokens.", visit, site, HINTS))
