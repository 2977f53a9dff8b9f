"""The canonical form of keys in a store.

Keys are text. A key that parses as an address is that address: ``::ffff:192.0.2.7`` is ``192.0.2.7``, a bare IPv6
address means its /64, and ``2001:db8::1/128`` that single address. Any other key of up to 64 bytes is used unchanged.
Longer keys become digests, and so do keys with lone surrogates, which cannot be encoded in UTF-8. A digest is 16 bytes
of BLAKE2b, keyed with the limiter's secret if it has one. All workers compute the same digest of a value, without
asking a store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from ..core.addresses import address_key, canonical_key, parse_address
from ..core.bans.ban import MAX_KEY_BYTES, BanSubject
from ..core.errors import ConfigurationError, InvalidKey, quoted
from ..core.limits import AnyLimit
from ..core.memo import MANY, remember
from ..core.passwords import AnySecret, revealed

NormalizedKey: TypeAlias = tuple[str, tuple[BanSubject, ...]]
"""The canonical form of a key; and if it is an address, the further subjects of its bans: the address and its key.

Thousands are remembered: the garbage collector leaves plain tuples of texts alone, and named ones not.
"""


class KeyOf:
    """A middleware's key for a value, for the methods of a `Limiter`: ``header("X-API-Key").of("k123")``.

    It is computed when a method uses it, because a digest needs that limiter's secret. Its repr hides the value.
    """

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: bytes) -> None:
        self.kind = kind
        self.value = value

    def __repr__(self) -> str:
        return f"<key {self.kind} of a value>"


AnyKey: TypeAlias = str | KeyOf
"""A key as the methods of a limiter accept it."""

Limits: TypeAlias = str | AnyLimit | Sequence[str | AnyLimit]
"""Limits as the methods of a limiter accept them."""

_PERSON: Final = b"slidegate"
"""Makes digests without a secret differ from those of other programs."""
SECRET_VARIABLE: Final = "SLIDEGATE_SECRET"
"""The environment variable with the secret of limiters that are made without one."""


class Keys:
    """Normalizes keys.

    Args:
        secret: The key for digests, 16 to 64 bytes; None for that in the environment, if there is one.

    Attributes:
        cache: The normalized forms of recent keys.
        names_key: What a store makes names with that do not show keys, see `Store.name_keys`; None without a secret.
        fingerprint: The same for two limiters with the same secret, or without one; it does not reveal the secret.

    Raises:
        ConfigurationError: The secret is too short or too long.
    """

    def __init__(self, secret: AnySecret | None) -> None:
        encoded = read_secret(secret)
        self.cache: dict[AnyKey, NormalizedKey] = {}
        self._digests: dict[tuple[str, bytes], str] = {}
        self._hash = blake2b(person=_PERSON, digest_size=16)
        self.names_key: bytes | None = None
        if encoded is not None:
            self._hash = blake2b(key=encoded, digest_size=16)
            self.names_key = self.digest("names", b"").encode()
        self.fingerprint = self.digest("fingerprint", b"")

    def normalize(self, key: AnyKey) -> NormalizedKey:
        """Return the canonical form of a key, and the further subjects of its bans.

        Raises:
            InvalidKey: `key` is not text, or empty.
        """
        if type(key) is str:
            cached = self.cache.get(key)
            if cached is not None:
                return cached
        if isinstance(key, KeyOf):
            return self.digest(key.kind, key.value), ()
        if not isinstance(key, str) or not key:
            raise InvalidKey(f'key: expected text that is not empty, for example "user:42", not {quoted(key)}')
        text = canonical_key(key)
        encoded = text.encode(errors="surrogatepass")
        if len(encoded) > MAX_KEY_BYTES or encoded.decode(errors="replace") != text:
            text = self.digest("long", encoded)
        normalized = text, _ban_subjects(key, text)
        remember(self.cache, key, normalized, MANY)
        return normalized

    def digest(self, kind: str, value: bytes) -> str:
        """Return a key of at most 64 bytes for a value that must not be readable, shown as ``kind#1f3a…``."""
        text = self._digests.get((kind, value))
        if text is None:
            hasher = self._hash.copy()
            hasher.update(kind.encode() + b"\0" + value)
            text = f"{kind[: MAX_KEY_BYTES - 33]}#{hasher.hexdigest()}"
            remember(self._digests, (kind, value), text, MANY)
        return text


def read_secret(secret: object) -> bytes | None:
    """Return the bytes of a secret, or of that in the environment; None if there is none.

    Raises:
        ConfigurationError: It is no secret; the message says where it comes from.
    """
    source = "secret"
    if secret is None:
        source, secret = SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE)
        if secret is None:
            return None
    try:
        secret = revealed(secret)
        encoded = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:  # a lone surrogate
        encoded = None
    if not isinstance(encoded, bytes) or not 16 <= len(encoded) <= 64:
        # A value of the wrong length may still be a secret, so the message does not include it.
        raise ConfigurationError("expected 16 to 64 bytes, for example from secrets.token_hex(32)", source)
    return encoded


def _ban_subjects(key: str, spelled: str) -> tuple[BanSubject, ...]:
    """Return whose bans refuse a key that is an address, too: the address, for networks, and the key of its client."""
    length = "/32"
    if ":" in key:
        length = "/128"
    address = parse_address(key.removesuffix(length))
    if address is None:
        return ()
    network_key = address_key(*address)
    if network_key == spelled:
        return (address,)
    return (address, network_key)
