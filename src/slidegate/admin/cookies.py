"""The cookie of a session: its name, its flags, and how it is found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

from .origins import field_values, says_https

NAME: Final = "slidegate_session"
MOST_COOKIES: Final = 4
"""How many cookies of the name are looked at: another site of the same domain may have set one beside ours."""
_PATH_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F))) - set('";,\\%')


def session_cookies(scope: Scope) -> Sequence[str]:
    """Return the values of the cookies that may be those of a session.

    Where the server knows that it is asked by https, a name without a prefix does not count, because a site of the same
    domain without https may have set it.
    """
    path = _path(scope)
    names = {_name(path, secure=True)}
    if scope.get("scheme") != "https":
        names.add(NAME)
    found = []
    for field in field_values(scope, b"cookie"):
        for pair in field.decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name in names:
                found.append(value)
    return found[:MOST_COOKIES]


def set_cookie(scope: Scope, value: str, lasts_s: int) -> tuple[bytes, bytes]:
    """Return the header field that sets the cookie of a session; an empty value and 0 seconds take it away."""
    path, secure = _path(scope), says_https(scope)
    parts = [
        f"{_name(path, secure=secure)}={value}",
        f"Path={path}",
        f"Max-Age={lasts_s}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    if secure:
        parts.append("Secure")
    return b"set-cookie", "; ".join(parts).encode("latin-1")


def _path(scope: Scope) -> str:
    """Return the path of the cookie: the place where the tool is mounted."""
    root: str = scope.get("root_path", "") or "/"
    # Another path would end the attribute; such a mount gets the widest one.
    return root if root.startswith("/") and _PATH_CHARACTERS.issuperset(root) else "/"


def _name(path: str, *, secure: bool) -> str:
    """Return the name of the cookie; a browser takes its prefix as a promise about the flags (RFC 6265bis, 4.1.3)."""
    if not secure:
        return NAME
    return f"__Host-{NAME}" if path == "/" else f"__Secure-{NAME}"
