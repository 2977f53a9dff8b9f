"""Guesses route templates from paths: ``/users/123`` is ``/users/{id}``.

A segment is an id if it is a number, a UUID, a date, at least eight hexadecimal digits with a number among them, or a
long text with several numbers. So is a segment behind a prefix with more than 24 different ones:
``/articles/{name}``. Nothing is learned from paths that do not exist: scanners ask for thousands.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

MAX_ROUTES: Final = 1_024
OTHER: Final = "(other paths)"
"""The route of paths that lead nowhere, or are too long or too many."""
MAX_BRANCHES: Final = 24
_MAX_SEGMENTS: Final = 8
_MAX_SEGMENT: Final = 64
_ID: Final = re.compile(
    r"[0-9]+|[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?"
    r"|(?=[^0-9]*[0-9])[0-9a-f]{8,}|(?=(?:[^0-9]*[0-9]){4})[\w-]{20,}",
    re.IGNORECASE,
)


class RouteGuesser:
    """Learns the routes of a site from its paths. Its size is bounded."""

    def __init__(self) -> None:
        self._branches: dict[tuple[str, ...], set[str]] = {}
        self._routes: set[str] = set()

    def of(self, target: str, status: int = 200) -> str:
        """Return the route of a request's target, as far as it is known from the paths before.

        Args:
            target: The target, with its query or without.
            status: The status of the answer; from a failure with 4xx nothing is learned.
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
        """Return a segment as a template has it; None if nothing like it is known and nothing may be learned."""
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
