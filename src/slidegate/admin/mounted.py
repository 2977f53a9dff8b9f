"""`Dashboard`: the page, its stream and the admin API behind one door."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from ..limiter import Limiter
from ..web.client_ip import ClientAddress
from .access import Access
from .api import READING_POSTS, AdminApi
from .console import Console
from .door import Door, File
from .frames import WINDOWS, Frames
from .live import Live, asked_window, problem
from .page_files import page_files
from .visitors import AuthFunction


class Dashboard(Door):
    """A page that shows a limiter at work, and bans: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    It shows figures of all workers that share the store, keeps itself up to date by server-sent events, and asks
    nobody but the application that it is mounted in. A gate above counts its requests too, unless a rule exempts them:
    ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to look at.
        token: The token whose owner may look and change, 16 to 512 printable ASCII characters; or several tokens.
        read_token: The token whose owner may only look; or several.
        auth: Instead of tokens, a function, sync or async, of the request that returns None for a stranger,
            ``"read"``, ``"full"``, or ``Visitor("full", "ann")``.
        hosts: The names under which the page may be asked, for example ``["ops.example.org"]``. By default any name;
            then the Origin of a browser must equal the Host.
        client: How the address of a visitor is found, behind proxies too; by default it is the peer.
        session: How long a session of a browser lasts, 1 minute to 30 days.

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
        session: str | float = "12h",
    ) -> None:
        access = Access(
            limiter, token=token, read_token=read_token, auth=auth, hosts=hosts, client=client, session=session
        )
        frames = Frames(Console.of(limiter))

        async def now(request: Request) -> Response:
            """Return the frame of a window, for pages without a stream."""
            window = asked_window(request)
            if window is None:
                return problem(422, f"window must be one of {', '.join(WINDOWS)}")
            return Response(await frames.latest(window), media_type="application/json")

        inner = Router(
            [Route("/api/now", now), Route("/api/live", Live(frames, access.still_valid))],
            redirect_slashes=False,
            default=AdminApi(limiter, prefix="/api"),
        )
        files = {path: File(*content) for path, content in page_files().items()}
        super().__init__(inner, access, files=files, prefix="/api", reading=READING_POSTS)
