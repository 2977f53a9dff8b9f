"""Transports for httpx that keep the rate limits of other services. Requires the extra `slidegate[httpx]`.

A pause is a temporary ban of the key in the limiter's store: workers that share a store pause together, and operators
list pauses with `Limiter.bans` and end them with `Limiter.unban`.

A unit counts from the time the request is sent. A server counts a request when it arrives, so a slow request and a
later, fast one may fall into one of its windows. To avoid every 429, set limits below those of the server.

A client of httpx that has a transport ignores its own `verify=`, `proxy=`, `http2=`, `cert=` and `limits=`: they belong
to the inner transport::

    LimitedTransport(limits="10/second", transport=httpx.AsyncHTTPTransport(http2=True, verify=context, proxy=url))
"""

from __future__ import annotations

from ._outbound import GITHUB_STATUSES, AsyncOutbound, Client, NotSent, SyncOutbound

try:
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.httpx needs the package {error.name}: pip install "slidegate[httpx]"') from error

__all__ = ["GITHUB_STATUSES", "LimitedTransport", "SyncLimitedTransport", "TurnTimeout"]


class TurnTimeout(NotSent, httpx.PoolTimeout):
    """A request was not sent: its key had no room within `wait`, or too many requests are already queued.

    It is also a `PoolTimeout` of httpx: a later request may succeed. Nothing was sent, or it was refused, and after the
    pause there was no room to send it again.

    Args:
        key: The key without room, as stores use it.
        retry_after_us: The time until there may be room, in microseconds; None if it is unknown.
    """


_CLIENT = Client(httpx, TurnTimeout)


class LimitedTransport(AsyncOutbound[httpx.Request, httpx.Response], httpx.AsyncBaseTransport):
    """Sends requests through another transport as fast as limits allow; further requests wait.

    ``httpx.AsyncClient(transport=LimitedTransport(limits="10/second"))``

    The client's own `verify=`, `proxy=` and `http2=` have no effect beside a transport. Give them to the inner one:
    ``LimitedTransport(limits=..., transport=httpx.AsyncHTTPTransport(http2=True, verify=..., proxy=...))``

    Args:
        limits: The limits of each key, as for `Limiter.hit`: ``"10/second; 1000/hour"``.
        key: Returns the key that a request is counted by, or None for no limit; by default its host.
        limiter: The limiter, for limits that several workers share; by default a new one in memory.
        transport: The transport that sends, which is closed with this one; by default an `httpx.AsyncHTTPTransport`.
        wait: How long a request may wait in total, including pauses and retries.
        retries: How often a request is sent again after a pause, if the status is below 500, the pause ends in time,
            and its body can be sent again. 0 to 10.
        statuses: The statuses, from 400 to 599, of responses that pause the key if they contain a duration;
            `GITHUB_STATUSES` for GitHub.
        name: The rule under which requests are counted in the limiter's store.

    Raises:
        ConfigurationError: An argument is invalid.
        TurnTimeout: By a request, if there is no room in time.
    """

    _client = _CLIENT


class SyncLimitedTransport(SyncOutbound[httpx.Request, httpx.Response], httpx.BaseTransport):
    """A `LimitedTransport` for sync clients: ``httpx.Client(transport=SyncLimitedTransport(limits="10/second"))``.

    It takes the arguments of `LimitedTransport`; `transport` is by default an `httpx.HTTPTransport`. Requests of all
    threads wait in one queue. They block their threads, and raise `ConfigurationError` where an event loop runs.
    """

    _client = _CLIENT
