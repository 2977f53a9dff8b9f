"""Transports for httpx2 that keep the rate limits of other services. Requires the extra `slidegate[httpx2]`.

They are those of `slidegate.httpx`, which says more, for the clients of httpx2.
"""

from __future__ import annotations

from ._outbound import GITHUB_STATUSES, AsyncOutbound, Client, NotSent, SyncOutbound

try:
    import httpx2
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.httpx2 needs the package {error.name}: pip install "slidegate[httpx2]"') from error

__all__ = ["GITHUB_STATUSES", "LimitedTransport", "SyncLimitedTransport", "TurnTimeout"]


class TurnTimeout(NotSent, httpx2.PoolTimeout):
    """A `slidegate.httpx.TurnTimeout` that is a `PoolTimeout` of httpx2."""


_CLIENT = Client(httpx2, TurnTimeout)


class LimitedTransport(AsyncOutbound[httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport):
    """A `slidegate.httpx.LimitedTransport`: ``httpx2.AsyncClient(transport=LimitedTransport(limits="10/second"))``."""

    _client = _CLIENT


class SyncLimitedTransport(SyncOutbound[httpx2.Request, httpx2.Response], httpx2.BaseTransport):
    """A `slidegate.httpx.SyncLimitedTransport`, for a `httpx2.Client`."""

    _client = _CLIENT
