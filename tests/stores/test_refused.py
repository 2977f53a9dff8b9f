"""What no store can be made of is refused where it is written: messages.txt has each message whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore

from ..test_messages import message_of

SECRET = "hunter2"
NAMES = {known.__name__: known for known in (Limiter, LmdbStore, MemoryStore, RedisStore)}


def refusal_of(expression: str) -> str:
    """Return the message, which shows no password, nor does an error behind it."""
    if SECRET in expression:
        with pytest.raises(ConfigurationError) as caught:
            eval(expression, dict(NAMES))
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None
    return message_of(expression, NAMES)


def test_options_and_addresses_that_cannot_work_are_refused_with_what_would(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("messages.txt"), ">>> ", refusal_of)
