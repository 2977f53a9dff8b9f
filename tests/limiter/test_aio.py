"""Work beside its caller, on an event loop."""

import asyncio
import gc

import pytest

from slidegate.limiter.aio import in_background


@pytest.mark.filterwarnings("error")
def test_work_whose_loop_ends_before_its_first_step_leaves_no_warning() -> None:
    ended: list[str] = []

    async def work() -> None:
        ended.append("work")

    async def begins_more() -> None:
        in_background(work())

    async def begin() -> None:
        in_background(begins_more())

    with asyncio.Runner() as runner:
        runner.run(begin())
    gc.collect()
    assert ended == []
