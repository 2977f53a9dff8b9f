"""The spellings of one value: what clients may write in several ways, and applications read alike.

Otherwise a client with one API key, token or cookie would have as many keys, and as many limits, as it finds spellings.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

TOKEN_BEGINS: Final = b"ey"
"""The first letters of a JSON object in base64."""
_PADDING: Final = b"=="
"""More than any base64 needs; decoders skip what is too much."""
_HOST_NAME: Final = re.compile(rb"\[[^\]]*\]|[^:]*")
_ESCAPE: Final = re.compile(r"\\(?:([0-3][0-7][0-7])|(.))")


def _credentials(value: bytes) -> bytes:
    """Return credentials as authentication reads them: the scheme in any case, blanks as one, Basic decoded.

    A value without a scheme, such as an API key, stays as it is.
    """
    scheme, *rest = value.decode("latin-1").split() or [""]
    if not rest:
        return value
    scheme = scheme.lower()
    credentials = " ".join(rest).encode("latin-1")
    if scheme == "basic":
        try:
            return b"basic " + b64decode(credentials + _PADDING)  # not every login wants the padding
        except ValueError:  # no login reads it
            pass
    return scheme.encode("latin-1") + b" " + token_as_read(credentials)


def token_as_read(value: bytes) -> bytes:
    """Return a signed or encrypted token (RFC 7515, 7516) as its verifiers read it; another value as it is.

    They protect the text of its first part, and decode the others: padding, spare bits, and whatever is no base64 make
    further texts of one token.
    """
    first, *others = value.split(b".")
    if not first.startswith(TOKEN_BEGINS) or len(others) not in (2, 4):
        return value
    try:
        decoded = [urlsafe_b64decode(part + _PADDING) for part in others]
    except ValueError:  # no reader accepts it
        return value
    return b".".join([first, *map(urlsafe_b64encode, decoded)])


def _host(value: bytes) -> bytes:
    """Return the name in a Host field: in any case, with any port, even one that is no number, and a final dot."""
    return _HOST_NAME.match(value.lower())[0].removesuffix(b".")  # type: ignore[index]  # it matches everything


NORMAL_FORMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "authorization": _credentials,
    "proxy-authorization": _credentials,
    "host": _host,
}
"""The fields that have several spellings of one meaning (RFC 9110, sections 7.2 and 11.4)."""


def unquoted(value: str) -> str:
    """Return the value of a cookie as `http.cookies` unquotes it."""
    if len(value) < 2 or not value[0] == value[-1] == '"':
        return value
    return _ESCAPE.sub(lambda match: match[2] or chr(int(match[1], 8)), value[1:-1])
