"""Accounts with their passwords, and the devices from which their owners have logged in before."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from secrets import compare_digest

from anyio import to_thread
from itsdangerous import BadSignature, URLSafeTimedSerializer

LONGEST = 128
"""The longest name and the longest password, in characters."""
DEVICE_S = 90 * 86_400
"""How long a device is known after a login."""


class Accounts:
    """Names and passwords. It stands for a table of users."""

    def __init__(self) -> None:
        self._hashes: dict[str, tuple[bytes, bytes]] = {}
        # A name that nobody has takes as long as one that somebody has, so time tells no names.
        self._nobody = os.urandom(16), b""

    def add(self, name: str, password: str) -> None:
        """Take an account in."""
        salt = os.urandom(16)
        self._hashes[name] = salt, _hashed(password, salt)

    async def check(self, name: str, password: str) -> bool:
        """Tell whether a password is right. The work is done in a thread."""
        salt, expected = self._hashes.get(name, self._nobody)
        if max(len(name), len(password)) > LONGEST:
            return False
        return compare_digest(await to_thread.run_sync(partial(_hashed, password, salt)), expected)


def _hashed(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, n=2**12, r=8, p=1)


class Devices:
    """Signs a cookie for each device that has logged in, and knows it again.

    Args:
        secret: The key of the signatures.
    """

    def __init__(self, secret: str) -> None:
        self._signer = URLSafeTimedSerializer(secret, salt="device")

    def cookie_for(self, name: str) -> str:
        """Return the cookie for a device from which somebody has logged in."""
        return self._signer.dumps(name)

    def knows(self, cookie: str, name: str) -> bool:
        """Tell whether a cookie says that this account was logged into from the device before."""
        try:
            return bool(self._signer.loads(cookie, max_age=DEVICE_S) == name)
        except BadSignature:
            return False
