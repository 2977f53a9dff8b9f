"""Tokens, which an operator shows at the door, and the keys that are derived from them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from ..core.errors import ConfigurationError
from .visitors import Role, Visitor

SHORTEST: Final = 16
LONGEST: Final = 512
MOST_TOKENS: Final = 16
MAKE_ONE: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'

_KEY: Final = b"slidegate: key of sessions"
_NAME: Final = b"slidegate: name of a token"


class Token:
    """One token, which is compared in constant time and never shown.

    Args:
        text: The token.
        role: The role of its owner.

    Attributes:
        visitor: Its owner. The name is eight digits of a digest, by which an operator recognises the token.
        key: The key of the sessions that are opened with the token, 32 bytes; another token has another key.
    """

    def __init__(self, text: str, role: Role) -> None:
        secret = text.encode("ascii")
        self._digest = sha256(secret).digest()
        self.key = hmac.digest(secret, _KEY, "sha256")
        self.visitor = Visitor(role, f"token#{hmac.digest(secret, _NAME, 'sha256').hex()[:8]}")

    def __repr__(self) -> str:
        return f"<Token {self.visitor.name} {self.visitor.role}>"

    def matches(self, digest: bytes) -> bool:
        """Tell whether a text with this digest is the token."""
        return hmac.compare_digest(self._digest, digest)


class Tokens:
    """All tokens that open a door.

    Args:
        what: The name of the tool, for error messages.
        token: The token that lets its owner look and change; or several.
        read_token: The token that lets its owner look; or several.

    Raises:
        ConfigurationError: A token cannot be used, or is given twice. The message does not show it.
    """

    def __init__(self, what: str, token: str | Iterable[str] | None, read_token: str | Iterable[str] | None) -> None:
        full, read = _read(what, "token", token), _read(what, "read_token", read_token)
        if len({*full, *read}) < len(full) + len(read):
            raise ConfigurationError(f"{what}: a token is given twice; make one for each, {MAKE_ONE}")
        if len(full) + len(read) > MOST_TOKENS:
            raise ConfigurationError(f"{what}: expected at most {MOST_TOKENS} tokens, not {len(full) + len(read)}")
        self.all = (*(Token(text, "full") for text in full), *(Token(text, "read") for text in read))

    def find(self, text: str) -> Token | None:
        """Return the token that a visitor shows; None if it is none.

        It takes the same time whether the text is a token, resembles one or does not.
        """
        # Of a digest an attacker cannot choose the first bytes; and digests have one length, whatever the token's.
        digest = sha256(text.encode(errors="surrogatepass")).digest()
        found = [token for token in self.all if token.matches(digest)]
        return found[0] if found else None


def _read(what: str, option: str, given: object) -> Sequence[str]:
    if given is None:
        return ()
    if not isinstance(given, (str, Iterable)) or isinstance(given, (bytes, bytearray)):
        raise ConfigurationError(f"{what}: {option}: expected text, for example from {MAKE_ONE}")
    texts = [given] if isinstance(given, str) else list(given)
    for text in texts:
        # A text that cannot be a token may be a secret all the same, so no message repeats it.
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigurationError(
                f"{what}: {option}: expected printable ASCII without spaces, for example from {MAKE_ONE}"
            )
        if not SHORTEST <= len(text) <= LONGEST:
            raise ConfigurationError(
                f"{what}: {option}: expected {SHORTEST} to {LONGEST} characters, for example from {MAKE_ONE}, "
                f"not {len(text)}"
            )
    return texts
