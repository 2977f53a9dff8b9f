"""Every worker makes the same digest of a value, whatever its store, and another secret makes another one."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from slidegate import Limiter, header

from ..remote_stores import RemoteStore

API_KEY = header("X-API-Key").of("k123")
LONG = "a long key of somebody's own " * 10
SECRET = b"only for this test, no secret"


@pytest.mark.parametrize("key", [API_KEY, LONG], ids=["header", "long"])
def test_a_digest_is_that_of_every_limiter_with_the_same_secret(key: str) -> None:
    for secret in (None, SECRET, SECRET.decode()):
        made = {Limiter(secret=secret).key_for(key), Limiter(RemoteStore(), secret=secret).key_for(key)}
        assert len(made) == 1, secret
    keys = [Limiter(secret=secret).key_for(key) for secret in (None, SECRET, b"another secret, no secret either")]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("secret", "how"),
    [(None, {"person": b"slidegate"}), (SECRET, {"key": SECRET})],
    ids=["without a secret", "with a secret"],
)
def test_a_digest_is_16_bytes_of_blake2b_over_kind_and_value(secret: bytes | None, how: dict[str, bytes]) -> None:
    expected = blake2b(b"header:x-api-key\0k123", digest_size=16, **how).hexdigest()  # type: ignore[arg-type]
    assert Limiter(secret=secret).key_for(API_KEY) == f"header:x-api-key#{expected}"
