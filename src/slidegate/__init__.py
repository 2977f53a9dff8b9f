"""A sliding-window gate for ASGI applications.

Counts requests per client, lets at most N through in *any* window of length W, answers the rest with 429 and an exact
`Retry-After`. Start with `RateLimitMiddleware`; without HTTP, with `Limiter`; for the arithmetic alone, with
`slidegate.core`.
"""

from __future__ import annotations

from .core.banlist import Ban, BanChange
from .core.banpolicy import BanPolicy
from .core.decision import Decision, LimitState, Reason
from .core.errors import ConfigurationError, SlidegateError, StoreError, StoreTimeout, StoreUnavailable
from .core.limits import Limit, parse_limits
from .core.networks import Networks
from .core.protocols import Event, Observer, Store
from .limiter import Limiter
from .limiter.statistics import Stats, Traffic
from .stores.memory import MemoryStore
from .stores.tables import MemoryStats
from .web.charges import charge
from .web.endpoints import LimitExceeded, RateLimit
from .web.findings import Finding
from .web.keys import combine, cookie, everyone, header, path_param, query
from .web.lists import NetworkFile, NetworkFiles
from .web.middleware import RateLimitMiddleware
from .web.openapi import document_limits
from .web.proxies import client_ip
from .web.rules import Rule
from .web.strikes import strike
from .web.users import user

__version__ = "0.1.0"

__all__ = [
    "Ban",
    "BanChange",
    "BanPolicy",
    "ConfigurationError",
    "Decision",
    "Event",
    "Finding",
    "Limit",
    "LimitExceeded",
    "LimitState",
    "Limiter",
    "MemoryStats",
    "MemoryStore",
    "NetworkFile",
    "NetworkFiles",
    "Networks",
    "Observer",
    "RateLimit",
    "RateLimitMiddleware",
    "Reason",
    "Rule",
    "SlidegateError",
    "Stats",
    "Store",
    "StoreError",
    "StoreTimeout",
    "StoreUnavailable",
    "Traffic",
    "charge",
    "client_ip",
    "combine",
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
