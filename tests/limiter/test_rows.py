"""The rows that a process keeps itself, where its store keeps none."""

import gc
from itertools import count

from slidegate import Limiter, MemoryStore


async def test_rows_are_written_and_read_whatever_other_threads_write_meanwhile() -> None:
    """A collection runs while a copy of the rows is made, and in a collection other threads get their turn."""
    limiter = Limiter(MemoryStore())
    for number in range(100):
        await limiter.keep_row("kept", number, b"x", 60_000_000)
    own, numbers, before = limiter.engine.rows._local, count(), gc.get_threshold()

    def another_thread_writes(phase: str, info: object) -> None:
        own.rows["other", next(numbers), b"w"] = b"x", own.time() + 60_000_000

    gc.callbacks.append(another_thread_writes)
    gc.freeze()  # a collection of all that other tests have left would take seconds
    gc.set_threshold(1)
    try:
        for number in range(100, 110):
            await limiter.keep_row("kept", number, b"x", 60_000_000)
            assert len(await limiter.rows("kept", 0, 200)) == number + 1
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        gc.callbacks.remove(another_thread_writes)
    assert next(numbers) > 10
