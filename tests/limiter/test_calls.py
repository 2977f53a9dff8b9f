"""What a limiter answers, call by call: calls.txt says it as a program of a user sees it."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slidegate
from slidegate import Limiter, MemoryStore, RateLimitExceeded, SlidegateError
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.player import settle
from ..remote_stores import SlowStore


def ran(times: int, function: Callable[..., object], *arguments: object) -> list[object]:
    """Call a function several times; return what it returns, or the seconds that a refused call is told to wait."""
    found = list[object]()
    for _ in range(times):
        try:
            found.append(function(*arguments))
        except RateLimitExceeded as refusal:
            found.append(refusal.retry_after_s)
    return found


class Program:
    """Makes the calls of a text, one a line, to the limiter that the last ``limiter`` has made."""

    def __init__(self, store: Callable[..., Any]) -> None:
        self.store, self.sent = store, list[str]()

    def answer(self, line: str) -> str:
        if line == "limiter":
            self.clock, self.observer = FakeClock(1_800_000_000_000_000), RecordingObserver()
            self.limiter = Limiter(self.store(clock=self.clock), observers=[self.observer], deadline="60s")
            return ""
        if line.startswith("+"):
            self.clock.advance(line.removeprefix("+"))
            return ""
        calls = {name: getattr(self.limiter.sync, name) for name in dir(self.limiter.sync) if name[0] != "_"}
        names: dict[str, Any] = {
            **vars(slidegate),
            **calls,
            "limiter": self.limiter,
            "events": self.events,
            "ran": ran,
            "sent": self.sent,
        }
        try:
            found = eval(line, names)
            found = asyncio.run(settle(found)) if inspect.isawaitable(found) else found
        except SlidegateError as error:
            return f"{type(error).__name__}: {error}"
        return found if isinstance(found, str) else repr(found)

    def events(self) -> str:
        """Return what observers have heard since the last look."""
        said = [f"{event.kind}: {event.message}; {dict(event.details)}" for event in self.observer.events]
        self.observer.events.clear()
        return "\n".join(said)


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
def test_calls_are_answered_as_the_text_says(store: Callable[..., Any], texts: Callable[..., None]) -> None:
    program = Program(store)
    texts(Path(__file__).with_name("calls.txt"), "> ", program.answer)
    program.limiter.sync.close()
