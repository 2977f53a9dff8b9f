"""A sliding-window rate limiter for ASGI applications.

It counts requests per client, lets at most N through in *any* window of length W, and answers the rest with 429 and an
exact `Retry-After`. Start with `RateLimitMiddleware`; without HTTP, with `Limiter`; for the arithmetic alone, with
`slidegate.core`. Types that users only receive are in `slidegate.ops.statistics`, `slidegate.events` and
`slidegate.core`.
"""

from __future__ import annotations

from .core import compiled as _compiled
from .core.bans.policy import BanPolicy
from .core.decision import Decision
from .core.errors import ConfigurationError, SlidegateError, StoreError
from .core.exceeded import RateLimitExceeded
from .core.limit_texts import parse_limits
from .core.limits import Limit
from .core.quotas import Quota
from .findings import inspection as _inspection
from .limiter import Limiter, SyncLimiter
from .networks.lists import Networks
from .networks.mcp import mcp_tool
from .networks.operators import network
from .stores.memory.store import MemoryStore
from .web.charges import charge, client_key, decision_of, settle
from .web.client_ip import client_ip
from .web.endpoints import RateLimit, rate_limit_exceeded
from .web.keys import combine, cookie, everyone, header, path_param, query, user
from .web.middleware import RateLimitMiddleware
from .web.policy import Policy as _Policy
from .web.rules import Rule
from .web.signals import strike
from .web.websockets import MessageLimits

_Policy.inspection = _inspection


class _ReloadingMiddleware:
    """Gives the class of middlewares that follow a file.

    What is given to `add_middleware` is a class, because agents that trace middlewares replace its ``__call__``. It is
    imported where it is used: most applications read no file, and this is a tenth of the package's import time.
    """

    def __get__(self, middleware: object, kind: object) -> object:
        from .files.reload import ReloadingMiddleware

        return ReloadingMiddleware


RateLimitMiddleware.from_file = _ReloadingMiddleware()  # type: ignore[assignment]  # a descriptor

__version__ = "0.1.0"
__compiled__: bool = _compiled
"""Whether the code on the request path is compiled; see `slidegate.core.compiled`."""

__all__ = [
    "BanPolicy",
    "ConfigurationError",
    "Decision",
    "Limit",
    "Limiter",
    "MemoryStore",
    "MessageLimits",
    "Networks",
    "Quota",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "Rule",
    "SlidegateError",
    "StoreError",
    "SyncLimiter",
    "charge",
    "client_ip",
    "client_key",
    "combine",
    "cookie",
    "decision_of",
    "everyone",
    "header",
    "mcp_tool",
    "network",
    "parse_limits",
    "path_param",
    "query",
    "rate_limit_exceeded",
    "settle",
    "strike",
    "user",
]
