"""Defaults, events, checks and the state of the event loop, for several stores."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from inspect import isawaitable
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from ..core.buckets import Check
from ..core.decide import WindowRef, decide
from ..core.decision import Decision
from ..core.errors import ConfigurationError, closest, quoted
from ..core.events import Event
from ..core.memo import MEMO_SIZE
from ..core.store import Clock
from .forks import ProcessLock

T = TypeVar("T")

# nginx stores 160,000 addresses in the 10 MB of its manual's example; ours take 200 to 900 bytes each, 20 to 90 MB.
DEFAULT_MAX_KEYS: Final = 100_000
DEFAULT_MAX_BANS: Final = 100_000
_UNWRITABLE: Final = re.compile(r"[^\S ]|[\x00-\x1f\x7f]")
"""Line breaks, tabs and control characters, some of which `urlsplit` drops silently."""
_VALUES: Final = {
    int: (re.compile("[0-9]{1,18}"), "a whole number"),
    bool: (re.compile("true|false", re.IGNORECASE), "true or false"),
    str: (re.compile(".+", re.DOTALL), "a value"),
}
"""By the type of an option, what its value matches, and what a message calls that."""
running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = asyncio._get_running_loop
"""Returns the asyncio event loop that runs in this thread; None if there is none. It is among the names that
`asyncio.events` exports, and takes a third of the time of `get_running_loop`, whose error would have to be caught."""
SHARED_CELLS: Final = 4_096
WINDOW_DIGEST_BYTES: Final = 8
"""The length of the digests that distinguish the windows of a key in shared stores."""
NAME_DIGEST_BYTES: Final = 5
"""How much of it, at its start, is the digest of the bucket's name alone: so a reset finds the windows of one rule."""


@lru_cache(MEMO_SIZE)
def digest_of(name: str, *window: object) -> bytes:
    """Return the digest of what identifies a window, such as a rule and `AnyLimit.same_window`; or a level."""
    text = "\n".join(map(str, window))
    return name_digest(name) + blake2b(text.encode(), digest_size=WINDOW_DIGEST_BYTES - NAME_DIGEST_BYTES).digest()


def name_digest(name: str) -> bytes:
    """Return what the digests of all windows of a bucket's name begin with; a reset may name what is no text."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=NAME_DIGEST_BYTES).digest()


def cell_of(name: bytes, secret: bytes) -> int:
    """Return the number of the shared cell of a key; clients cannot predict which keys have the same."""
    digest = blake2b(name, key=secret, digest_size=4).digest()
    return int.from_bytes(digest, "big") % SHARED_CELLS


def preview(checks: Sequence[Check], refs: Sequence[WindowRef], now_us: int) -> Decision:
    """Return what `decide` would answer, without a charge: it changes copies of the windows."""
    copies: list[WindowRef] = []
    for counter, cost, windows, name, is_charged in refs:
        copies.append((counter, cost, {name: windows[name]}, name, is_charged))
    decision = decide(checks, copies, now_us)
    decision.reservations = ()
    return decision


def keys_shared(max_keys: int) -> Event:
    """Return the event for keys that are counted in shared cells."""
    message = f"all {max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
    return Event("keys_shared", message, {"max_keys": max_keys})


def on_loop() -> bool:
    """Return whether an event loop, of asyncio or trio, runs in this thread."""
    if running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()  # `in_trio_run` is newer than what anyio needs
    except RuntimeError:
        return False
    return True


def run_unless_on_loop(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Return a coroutine on an event loop, so that other tasks run in between; without one, its result.

    It suspends for nothing else, so it needs no loop of its own: `asyncio.run` would replace that of the thread.
    """
    if running_loop() is not None:
        return work
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer


async def answer_of(answer: T | Awaitable[T]) -> T:
    """Return the answer of a method that may return an awaitable of it, within a coroutine."""
    if isawaitable(answer):
        return await answer
    return answer


async def in_steps(items: Iterable[T], step: int) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks run in between, if an event loop runs."""
    remaining = iter(items)
    while part := list(islice(remaining, step)):
        yield part
        await pause()


async def pause(span_s: float = 0.0) -> None:
    """Sleep on the asyncio event loop that runs in this thread, where other tasks go on; else in the thread itself."""
    if running_loop() is None:
        time.sleep(span_s)  # noqa: ASYNC251 - there is no event loop that it could block
    else:
        await asyncio.sleep(span_s)


def clean_address(url: str) -> str:
    """Return the address of a store without white space around it, such as the line break at the end of a secret file.

    Raises:
        ConfigurationError: It has a line break or a control character inside. The message does not repeat the address,
            which may hold a password.
    """
    url = url.strip()
    match = _UNWRITABLE.search(url)
    if match is not None:
        raise ConfigurationError(
            f"store address: it has {match[0]!r} after {match.start()} characters; write it in one line"
        )
    return url


def read_options(query: str, types: Mapping[str, type], where: str) -> dict[str, Any]:
    """Return the options in the query of an address.

    Args:
        types: The types of the options by name: `int`, `bool` or `str`.
        where: What error messages begin with.

    Raises:
        ConfigurationError: An option is unknown, or has no value of its type.
    """
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        kind = types.get(name)
        if kind is None:
            raise ConfigurationError(f"{where}: unknown option {quoted(name)}{closest(name, types)}")
        shape, needed = _VALUES[kind]
        if not shape.fullmatch(value):
            raise ConfigurationError(f"{where}: {name} needs {needed}, not {quoted(value)}")
        options[name] = value.lower() == "true" if kind is bool else kind(value)
    return options


def non_decreasing(clock: Clock) -> Clock:
    """Return a thread-safe clock that never runs backwards: if the given one does, it continues from there."""
    lock, latest_us, ahead_us = ProcessLock(), 0, 0

    def now_us() -> int:
        nonlocal latest_us, ahead_us
        with lock:
            clock_us = clock()
            ahead_us = max(ahead_us, latest_us - clock_us)
            latest_us = clock_us + ahead_us
            return latest_us

    return now_us
