"""A store that hangs delays a request by its deadline, also one whose response asks for a pause."""

import asyncio
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.testing import RecordingObserver

from ..redis_servers import AT_REDIS, RedisServer
from .kinds import Kind

URL = "http://api.example.com/"
BOUND_S = 5
"""Far below how long a command of an operator waits, 30 s, and this store for an answer of its server."""


@contextmanager
def hung(kind: str, path: Path, **options: Any) -> Iterator[Limiter]:
    """Give a limiter whose store has answered and now hangs: its server, or another process that holds its files."""
    if kind == "redis":
        with RedisServer() as server:
            limiter = Limiter.from_url(f"{server.url}?timeout=20s", **options)
            assert limiter.sync.hit("k", "5/minute")
            server.pause()
            yield limiter
            server.resume()
            limiter.sync.close()
        return
    limiter = Limiter.from_url(f"lmdb://{path}/store", **options)
    assert limiter.sync.hit("k", "5/minute")
    with (path / "store" / "gate").open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield limiter
    limiter.sync.close()


@contextmanager
def getting(kind: Kind, limiter: Limiter) -> Iterator[Callable[[], Any]]:
    """Give what sends a request by a client of a kind, whose server asks for a pause, and waits for the response."""
    answering = kind.httpx.MockTransport(lambda request: kind.httpx.Response(429, headers={"Retry-After": "60"}))
    client = kind.client(limits="9/hour", limiter=limiter, transport=answering)
    if kind.is_sync:
        with client:
            yield lambda: client.get(URL)
        return
    with asyncio.Runner() as runner:
        yield lambda: runner.run(client.get(URL))
        runner.run(client.aclose())


@pytest.mark.parametrize("store", ["lmdb", AT_REDIS])
@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
def test_a_pause_that_cannot_be_stored_delays_a_response_by_the_deadline(
    kind: Kind, store: str, on_error: str, tmp_path: Path
) -> None:
    """With "local" this process observes it."""
    observer = RecordingObserver(without=["refused"])
    with hung(store, tmp_path, on_error=on_error, observers=[observer]) as limiter, getting(kind, limiter) as get:
        began_s = monotonic()
        if on_error != "deny":
            assert get().status_code == 429
        if on_error != "allow":
            with pytest.raises(kind.limited.TurnTimeout, match={"local": "banned", "deny": "unavailable"}[on_error]):
                get()
        assert monotonic() - began_s < BOUND_S
    told = [event.message for event in observer.events if event.kind == "pause_unshared"]
    unshared = "'to:api.example.com' requested a pause of 60 s, which is not observed: "
    assert told == ([f"{unshared}StoreUnavailable('the store did not answer')"] if on_error == "allow" else [])
