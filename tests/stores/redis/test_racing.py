"""Several servers are asked for something that any can tell: the first answer wins, one that hangs holds up nobody."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate.core.errors import StoreUnavailable
from slidegate.stores.redis.wire.first_answer import first_of

APART_S = 0.001
KINDS = st.lists(st.sampled_from(["answers", "fails", "hangs", "answers late"]), max_size=5)


class Asked:
    def __init__(self) -> None:
        self.running, self.let_go = 0, list[int]()

    async def ask(self, number: int, kind: str) -> int:
        self.running += 1
        try:
            if kind == "hangs":
                await asyncio.Event().wait()
            await asyncio.sleep(3 * APART_S if kind == "answers late" else 0)
            if kind == "fails":
                raise StoreUnavailable(str(number))
            return number
        finally:
            self.running -= 1


@given(KINDS)
@settings(deadline=None)
def test_whoever_answers_is_found_and_nobody_is_left_asking(kinds: list[str]) -> None:
    async def play() -> None:
        asked = Asked()
        tries = [partial(asked.ask, number, kind) for number, kind in enumerate(kinds)]
        race = first_of(tries, APART_S, "nobody", asked.let_go.append)
        if any(kind.startswith("answers") for kind in kinds):
            async with asyncio.timeout(10):
                winner = await race
            assert kinds[winner].startswith("answers")
            assert winner not in asked.let_go
        elif "hangs" in kinds:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10 * APART_S):
                    await race
        else:
            with pytest.raises(StoreUnavailable, match=r"\d" if kinds else "nobody"):
                await race
        assert asked.running == 0

    asyncio.run(play())


async def test_who_failed_is_asked_again_while_another_hangs() -> None:
    answers = iter([False, False, True])

    async def learns() -> str:
        if not next(answers):
            raise StoreUnavailable("not yet")
        return "known"

    async with asyncio.timeout(10):
        assert await first_of([asyncio.Event().wait, learns], APART_S, "nobody") == "known"  # type: ignore[list-item]
