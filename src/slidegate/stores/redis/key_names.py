"""Names of things in Redis. The part in braces decides where a cluster keeps them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

from ...core.memo import remember

LAYOUT: Final = 2
"""The version of the windows' bytes: those of another one lie under other names. ``lua/windows`` writes it as well."""
TAG_BYTES: Final = 12
"""With the secret nobody can look for two keys that have one digest; by chance it takes some 10^14 keys."""


class Names:
    """Names under a prefix.

    Args:
        prefix: The beginning of all of them.
        readable: Whether keys are readable in them; otherwise they are digests.

    Attributes:
        meta: The hash with the secret and the numbers of changes; the names of everything about bans begin with it.
        windows: The pattern of the hashes of windows.
        secret: The key for digests; empty until it is known.
    """

    def __init__(self, prefix: str, *, readable: bool) -> None:
        self.meta = f"{prefix}:{{bans}}".encode()
        self.windows = f"{prefix}:w{LAYOUT}:{{*".encode()
        self.secret = b""
        self._prefix = f"{prefix}:w{LAYOUT}:".encode()
        self._places_prefix = f"{prefix}:p:".encode()
        self._readable = readable
        self._known: dict[str, bytes] = {}

    def use(self, secret: bytes) -> None:
        """Take a secret over."""
        if secret != self.secret:
            self.secret = secret
            self._known.clear()

    def name_of(self, key: str) -> bytes:
        """Return the name of the hash with the windows of a key."""
        name = self._known.get(key)
        if name is None:
            text = key.encode(errors="surrogatepass")
            if not self._readable:
                text = urlsafe_b64encode(blake2b(text, key=self.secret, digest_size=TAG_BYTES).digest())
            name = remember(self._known, key, b"%s{%s}" % (self._prefix, text))
        return name

    def places_of(self, key: str, field: bytes) -> bytes:
        """Return the name of the set with the places of a key under a rule, in the slot of its windows."""
        tag = self.name_of(key)[len(self._prefix) :]
        return b"%s%s:%s" % (self._places_prefix, tag, field.hex().encode())
