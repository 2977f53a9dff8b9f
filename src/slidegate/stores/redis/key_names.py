"""Names of things in Redis. The part in braces decides where a cluster keeps them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

from ...core.memo import remember

LAYOUT: Final = 3
"""The version of everything that is stored: that of another one lies under other names."""
DIGEST_BYTES: Final = 16
"""Nobody can look for two keys that have one digest."""


class Names:
    """Names under a prefix.

    Args:
        prefix: The beginning of all of them.
        readable: Whether keys are readable in them; otherwise they are digests.

    Attributes:
        meta: The hash with the numbers of changes; the names of everything about bans begin with it.
        windows: The pattern of the hashes of windows.
    """

    def __init__(self, prefix: str, *, readable: bool) -> None:
        self.meta = f"{prefix}:{LAYOUT}:{{bans}}".encode()
        self.windows = f"{prefix}:{LAYOUT}:w:{{*".encode()
        self._prefix = f"{prefix}:{LAYOUT}:w:".encode()
        self._permits_prefix = f"{prefix}:{LAYOUT}:p:".encode()
        self._readable = readable
        self._known: dict[str, bytes] = {}

    def name_of(self, key: str) -> bytes:
        """Return the name of the hash with the windows of a key."""
        name = self._known.get(key)
        if name is None:
            text = key.encode(errors="surrogatepass")
            if not self._readable:
                text = urlsafe_b64encode(blake2b(text, digest_size=DIGEST_BYTES).digest()).rstrip(b"=")
            name = remember(self._known, key, b"%s{%s}" % (self._prefix, text))
        return name

    def permits_of(self, key: str, field: bytes) -> bytes:
        """Return the name of the set with the permits of a key under a rule, in the slot of its windows."""
        tag = self.name_of(key)[len(self._prefix) :]
        return b"%s%s:%s" % (self._permits_prefix, tag, field.hex().encode())
