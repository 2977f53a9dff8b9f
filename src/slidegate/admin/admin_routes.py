"""The admin API behind its door, to mount in an application."""

from __future__ import annotations

from collections.abc import Iterable

from ..limiter import Limiter
from ..web.client_ip import ClientAddress
from .access import Access
from .api import READING_POSTS, AdminApi
from .door import Door
from .visitors import AuthFunction


class AdminRoutes(Door):
    """The admin API: an ASGI application with which operators see figures, clients and rules, and ban, unban and reset.

    Mount it in FastAPI or Starlette: ``app.mount("/admin", AdminRoutes(limiter, token=...))``. Its description is at
    ``openapi.json`` below that. Requests carry ``Authorization: Bearer TOKEN``.

    Args:
        limiter: The limiter whose gates and clients it shows.
        token: The token whose owner may look and change, 16 to 512 characters; or several tokens.
        read_token: The token whose owner may look; or several.
        auth: Instead of tokens, a function, sync or async, of the request (which has no body here) that returns None
            for a stranger, ``"read"``, ``"full"``, or ``Visitor("full", "ann")``.
        hosts: The names under which it may be asked, with a port or for any port: ``["ops.example.org"]``.
        client: How the address of a client is found, behind proxies too, for the limit on wrong tokens.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        token: str | Iterable[str] | None = None,
        read_token: str | Iterable[str] | None = None,
        auth: AuthFunction | None = None,
        hosts: Iterable[str] = (),
        client: ClientAddress | None = None,
    ) -> None:
        access = Access(
            limiter, token=token, read_token=read_token, auth=auth, hosts=hosts, client=client, what="AdminRoutes"
        )
        # A page of the application's, which `auth` knows by a cookie, asks there for the proof that its changes need.
        super().__init__(AdminApi(limiter), access, reading=READING_POSTS, sessions=auth is not None)
