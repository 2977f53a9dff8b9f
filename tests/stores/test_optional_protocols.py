"""What a store may offer besides what every store does, a limiter takes up."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

from slidegate import Limiter, MemoryStore
from slidegate.core import (
    Check,
    Decision,
)
from slidegate.core.bans.in_force import Guarded
from slidegate.testing import RecordingObserver


class OneServer(MemoryStore):
    """A store that fails."""

    promised_s = 0.0

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        raise OSError("gone")


class TwoServers(OneServer):
    """One that has parts and keeps its deadline."""

    def part_of(self, checks: Sequence[Check]) -> Hashable:
        return "left" if checks else "right"

    def keep_deadline(self, deadline_s: float) -> bool:
        self.promised_s = deadline_s
        return True


@pytest.mark.interpreted("a compiled class cannot be derived from")
@pytest.mark.parametrize(("kind", "where", "promised_s"), [(OneServer, "", 0.0), (TwoServers, " at left", 0.07)])
async def test_a_limiter_takes_up_what_a_store_offers(
    kind: type[OneServer], where: str, promised_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, heard = kind(), RecordingObserver()
    monkeypatch.setattr("slidegate.limiter.internals.MemoryStore", str)  # these stand for stores elsewhere
    limiter = Limiter(store, deadline="70ms", on_error="deny", observers=[heard])
    assert not await limiter.hit("ann", "5/minute")
    assert heard.events[0].message.startswith(f"the store failed{where},")
    assert store.promised_s == promised_s
