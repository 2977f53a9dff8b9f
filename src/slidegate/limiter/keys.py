"""How keys are spelled in a store.

Keys are text. One that reads as an address is that address: ``::ffff:192.0.2.7`` is ``192.0.2.7``, a bare IPv6 address
means its /64, and ``2001:db8::1/128`` exactly itself. Everything else is taken as it is, up to 64 bytes; longer keys
are digested with a secret.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

from ..core.banlist import MAX_KEY_BYTES, Guarded
from ..core.errors import ConfigurationError
from ..core.memo import remember
from ..core.networks import canonical_key, parse_address, parse_network

Known: TypeAlias = tuple[str, tuple[Guarded, ...]]
"""The spelling of a key, and whose bans refuse it besides its own: the address that it is, if it is one."""


class Keys:
    """Spells keys.

    Args:
        secret: The key for digests.

    Attributes:
        known: What was asked before.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.known: dict[str, Known] = {}
        self._digests: dict[tuple[str, bytes], str] = {}

    def learn(self, key: str) -> Known:
        """Spell a key.

        Raises:
            ConfigurationError: `key` is not text, or empty.
        """
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f'key: expected text that is not empty, for example "user:42", not {key!r}')
        text = canonical_key(key)
        encoded = text.encode(errors="surrogatepass")
        if len(encoded) > MAX_KEY_BYTES:
            text = self.digest("long", encoded)
        return remember(self.known, key, (text, _guards(key)))

    def digest(self, kind: str, value: bytes) -> str:
        """Return a key of at most 64 bytes for a value that must not be readable, shown as ``kind#1f3a…``."""
        known = self._digests.get((kind, value))
        if known is None:
            digest = blake2b(kind.encode() + b"\0" + value, key=self._secret, digest_size=16).hexdigest()
            known = remember(self._digests, (kind, value), f"{kind[: MAX_KEY_BYTES - 33]}#{digest}")
        return known


def check_secret(secret: object) -> bytes:
    """Return a secret given by the user as bytes.

    Raises:
        ConfigurationError: It is too short or too long.
    """
    encoded = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(encoded, bytes) or not 16 <= len(encoded) <= 64:
        # Whatever was given may be a secret all the same, so the message does not repeat it.
        raise ConfigurationError("secret: expected 16 to 64 bytes, for example from secrets.token_hex(32)")
    return encoded


def _guards(key: str) -> tuple[Guarded, ...]:
    address = parse_address(key)
    if address is None and "/" in key:
        try:
            version, first, last = parse_network(key)
        except ConfigurationError:
            return ()
        address = (version, first) if first == last else None
    return () if address is None else (address,)
