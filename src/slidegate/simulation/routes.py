"""Guesses route templates from paths: ``/users/123`` is ``/users/{id}``.

A segment becomes ``{id}`` if it is a number, a UUID, a date, at least eight hexadecimal digits with a decimal digit
among them, or a long text with several digits. A prefix with more than 24 different next segments gets ``{name}``:
``/articles/{name}``. Requests that failed with 4xx are ignored, because scanners request thousands of missing paths.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

MAX_ROUTES: Final = 1_024
OTHER: Final = "(other paths)"
"""The route of paths that failed with 4xx, have too many segments, or exceed `MAX_ROUTES`."""
MAX_BRANCHES: Final = 24
_MAX_SEGMENTS: Final = 8
_MAX_SEGMENT: Final = 64
_ID: Final = re.compile(
    r"[0-9]+|[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?"
    r"|(?=[^0-9]*[0-9])[0-9a-f]{8,}|(?=(?:[^0-9]*[0-9]){4})[\w-]{20,}",
    re.IGNORECASE,
)


class RouteGuesser:
    """Learns the routes of a site from requested paths. Its size is bounded."""

    def __init__(self) -> None:
        self._branches: dict[tuple[str, ...], set[str]] = {}
        self._routes: set[str] = set()

    def of(self, target: str, status: int = 200) -> str:
        """Return the route of a request target, as guessed from the paths so far.

        Args:
            target: The target, with or without its query.
            status: The status of the response; the guesser does not learn from 4xx.
        """
        path, failed = target.partition("?")[0], 400 <= status <= 499
        segments = unquote(path).split("/")[1:]
        if not path.startswith("/") or len(segments) > _MAX_SEGMENTS:
            return OTHER
        template: tuple[str, ...] = ()
        for segment in segments:
            text = self._segment(template, segment, failed)
            if text is None:
                return OTHER
            template += (text,)
        route = "/" + "/".join(template)
        if route not in self._routes:
            if failed or len(self._routes) >= MAX_ROUTES:
                return OTHER
            self._routes.add(route)
        return route

    def _segment(self, before: tuple[str, ...], segment: str, failed: bool) -> str | None:
        """Return the template of a segment; None if it is unknown and must not be learned."""
        if _ID.fullmatch(segment):
            return "{id}"
        if not segment:
            return segment
        branches = self._branches.get(before)
        if branches is not None and segment in branches:
            return segment
        full = branches is not None and len(branches) >= MAX_BRANCHES
        if not full and len(segment) <= _MAX_SEGMENT and not set(segment) & set("{}*"):
            if failed:
                return None
            if branches is not None or len(self._branches) < MAX_ROUTES:
                self._branches.setdefault(before, set()).add(segment)
                return segment
        return "{name}"
