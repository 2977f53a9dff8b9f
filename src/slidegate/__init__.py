"""A sliding-window gate for ASGI applications.

It counts requests per client, lets at most N through in *any* window of length W, and answers the rest with 429 and an
exact `Retry-After`. Start with `RateLimitMiddleware`; without HTTP, with `Limiter`; for the arithmetic alone, with
`slidegate.core`.
"""

from __future__ import annotations

from .core import decision as _decision
from .core.bans.in_force import Ban, BanChange
from .core.bans.policy import BanPolicy
from .core.bans.standing_view import PolicyStanding
from .core.decision import Decision, LimitState, Reason
from .core.errors import (
    ConfigurationError,
    InvalidKey,
    RateLimitExceeded,
    SlidegateError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from .core.limits import Limit, Quota, parse_limits
from .core.store import Event, Observer, Store
from .core.views import WindowSlice, WindowView
from .limiter import Limiter
from .limiter.decorator import Limited
from .limiter.events import EventStats, Subscription
from .limiter.figures.stats import AllStats, Chart, Point, Stats, Traffic, Worker
from .limiter.inspect import KeyStanding, KeyView
from .limiter.keys import KeyOf
from .limiter.sync import SyncLimiter
from .stores.memory.store import MemoryStats, MemoryStore
from .web.bans.strike import strike
from .web.checks import Finding
from .web.endpoints.rate_limit import RateLimit, charge
from .web.keys.client_ip import client_ip
from .web.keys.key import combine, cookie, everyone, header, query
from .web.keys.path_param import path_param
from .web.keys.user import user
from .web.middleware import RateLimitMiddleware
from .web.network_files import NetworkFile, NetworkFiles, Networks
from .web.openapi import document_limits
from .web.overload import LoadSheddingMiddleware
from .web.rules import Rule
from .web.websockets.message_limits import MessageLimits

__version__ = "0.1.0"

compiled: bool = not _decision.__file__.endswith(".py")
"""Whether the core runs as extension modules, from a compiled wheel, or as the source that it was made of."""

__all__ = [
    "AllStats",
    "Ban",
    "BanChange",
    "BanPolicy",
    "Chart",
    "ConfigurationError",
    "Decision",
    "Event",
    "EventStats",
    "Finding",
    "InvalidKey",
    "KeyOf",
    "KeyStanding",
    "KeyView",
    "Limit",
    "LimitState",
    "Limited",
    "Limiter",
    "LoadSheddingMiddleware",
    "MemoryStats",
    "MemoryStore",
    "MessageLimits",
    "NetworkFile",
    "NetworkFiles",
    "Networks",
    "Observer",
    "Point",
    "PolicyStanding",
    "Quota",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "Reason",
    "Rule",
    "SlidegateError",
    "Stats",
    "Store",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "Subscription",
    "SyncLimiter",
    "Traffic",
    "WindowSlice",
    "WindowView",
    "Worker",
    "charge",
    "client_ip",
    "combine",
    "compiled",
    "cookie",
    "document_limits",
    "everyone",
    "header",
    "parse_limits",
    "path_param",
    "query",
    "strike",
    "user",
]
