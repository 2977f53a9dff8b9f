"""Helpers for asyncio and trio: the running event loop, a deadline, and work that is shielded from cancellation.

No task that is started here ends with an exception, even if it is awaited: error trackers, which watch all tasks of a
process, would report each request of an outage. The code that awaits a task raises its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from contextvars import ContextVar, copy_context
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from ..core.errors import ConfigurationError, StoreTimeout
from ..core.logs import log_failure
from ..core.store import COMMAND_DEADLINE_S
from ..stores.shared import on_loop, running_loop

_IDLE_ITERATIONS: Final = 50
"""After how many iterations without work nothing more is expected from requests that the server has cancelled: a
cancellation takes a few to pass a task group."""

T = TypeVar("T")

_running: Final[set[asyncio.Future[Any]]] = set()
"""The tasks started here: an event loop keeps only weak references to its tasks."""
_is_alone: ContextVar[bool] = ContextVar("slidegate_is_alone", default=False)
"""Whether `run_at_once` runs this code."""


class End(NamedTuple):
    """How some work has ended: with a result, or with an error. Each task that is started here returns one."""

    result: Any = None
    error: Exception | None = None


def on_asyncio() -> bool:
    """Return whether an asyncio event loop runs in this thread."""
    return running_loop() is not None


def is_cancellation(error: BaseException) -> bool:
    """Return whether an error is the cancellation of the running task.

    Another `CancelledError` is that of something awaited, such as a task which many requests share.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    if not on_asyncio():
        return True
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def let_others_run() -> None:
    """Let other tasks run, and be cancelled, if an event loop runs in this thread, but not within `run_at_once`."""
    if on_loop() and not _is_alone.get():
        from anyio.lowlevel import checkpoint  # few processes need it, and its import is slow

        await checkpoint()


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but its turn, and return its result; no other task runs meanwhile.

    Raises:
        ConfigurationError: It awaits something else, as a store must not that answers threads.
    """
    # In a context of its own, so that a signal handler that raises here leaves nothing in that of the thread.
    context = copy_context()
    context.run(_is_alone.set, True)
    try:
        context.run(work.send, None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        work.close()
    raise ConfigurationError("store: answers_threads is true, so the store must not await anything")


async def yielding_to_others(items: Iterable[T], step: int) -> AsyncIterator[T]:
    """Yield each item, and let other tasks run after every `step` items, if there is an event loop."""
    for number, item in enumerate(items, start=1):
        yield item
        if not number % step:
            await let_others_run()


async def answer_of(answer: Awaitable[T] | T) -> T:
    """Return an answer, which may have to be awaited."""
    if isawaitable(answer):
        return await answer
    return answer


async def within(answer: Awaitable[T] | T, deadline_s: float = COMMAND_DEADLINE_S, timeout_text: str = "") -> T:
    """Return an answer; if it is awaitable, wait no longer than `deadline_s`.

    In a thread without an event loop no timer can be set; there the store itself keeps the deadline.

    Args:
        deadline_s: How long to wait for it.
        timeout_text: The text of the error if it comes later; by default ``no answer within 30 s``.

    Raises:
        StoreTimeout: The answer did not come in time.
        ConfigurationError: The running event loop is not asyncio's.
    """
    if not isawaitable(answer) or not on_loop():
        return await answer_of(answer)
    if not on_asyncio():
        if isinstance(answer, Coroutine):
            answer.close()  # else Python warns that it was never awaited
        raise ConfigurationError(
            "store: one that must be awaited needs asyncio, and trio runs here; use MemoryStore(), for example"
        )
    try:
        async with asyncio.timeout(deadline_s):
            return await answer
    except TimeoutError:
        raise StoreTimeout(timeout_text or f"no answer within {deadline_s:g} s") from None


async def each_within(parts: Iterable[T] | AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield each part; wait for none longer than a command may take, and let other tasks run after each.

    Raises:
        StoreTimeout: One did not come in time.
        ConfigurationError: They must be awaited, and the running event loop is not asyncio's.
    """
    if not isinstance(parts, AsyncIterator):
        for part in parts:
            yield part
            await let_others_run()
        return
    while True:
        try:
            part = await within(anext(parts))
        except StopAsyncIteration:
            return
        yield part
        await let_others_run()


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Future[End] | None:
    """Run a coroutine as a task of this thread's asyncio event loop, and return it; without a loop, discard it."""
    if not on_asyncio():
        work.close()
        return None
    task = _start_task(_end_of(work))
    task.add_done_callback(_log_failure)
    task.add_done_callback(lambda _: work.close())  # a loop that ends may cancel the task before its first step
    return task


async def wait_for_end(task: asyncio.Future[Any], until_s: float) -> None:
    """Wait for the end of a task, with or without an error, but no longer than until a moment.

    Args:
        until_s: The moment, by `time.monotonic`.
    """
    await asyncio.wait([task], timeout=max(until_s - monotonic(), 0.0))


async def to_the_end(work: Awaitable[T] | T) -> T:
    """Return the result of some work; if it has to be awaited, it continues to its end even if the caller is cancelled.

    A cancellation of the caller arrives at its next await, unless it was taken back by then.
    """
    if not isawaitable(work):
        return work
    if not on_asyncio():
        if not on_loop():  # without a loop nothing can be cancelled
            return await work
        with anyio.CancelScope(shield=True):  # under trio only scopes are cancelled
            return await work
    task = _start_task(_end_of(work))
    cancelled: Sequence[Any] | None = None
    with anyio.CancelScope(shield=True):  # else anyio would cancel the caller in each iteration of the loop
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:  # by `Task.cancel`, against which no scope protects
                cancelled = error.args
    if cancelled is not None:
        _cancel_again(cancelled)
    end = task.result()
    if end.error is not None:
        raise end.error
    result: T = end.result
    return result


def _cancel_again(message: Sequence[Any]) -> None:
    """Cancel the running task at its next await, unless that was taken back by then, as `asyncio.timeout` does.

    The cancellation that the task has swallowed still counts in `cancelling()`.
    """
    caller = asyncio.current_task()
    if caller is None:
        return
    requests = caller.cancelling()

    def cancel() -> None:
        if caller.cancelling() >= requests:
            caller.uncancel()  # as `cancel` counts it once more
            caller.cancel(*message)

    caller.get_loop().call_soon(cancel)


async def finish(deadline_s: float) -> None:
    """Wait for the work of this thread's event loop that must not be cut off, and for what callers begin after it.

    A server that ends cancels its last requests just before, so that some may not have begun with their last work.
    """
    if not on_asyncio():  # under trio a nursery waits for its tasks
        return
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    idle_iterations = 0
    while idle_iterations < _IDLE_ITERATIONS:
        left_s = until_s - loop.time()
        if left_s <= 0:
            return
        tasks = _running.copy()  # other threads change the set meanwhile
        tasks_here = [task for task in tasks if task.get_loop() is loop]
        if tasks_here:
            idle_iterations = 0
            await asyncio.wait(tasks_here, timeout=left_s)
        else:
            idle_iterations += 1
            await asyncio.sleep(0)


async def _end_of(work: Awaitable[T]) -> End:
    """Do some work, and return how it ended."""
    try:
        return End(await work)
    except Exception as error:
        return End(error=error)


def _start_task(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Start some work, and keep a reference to its task until it is done."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


def _log_failure(task: asyncio.Future[End]) -> None:
    """Log the failure of some work: in an outage much of it fails."""
    # What is no `Exception`, such as KeyboardInterrupt, ends the loop, which reports it.
    if task.cancelled() or task.exception() is not None:
        return
    error = task.result().error
    if error is not None:
        log_failure("work in the background failed", error, monotonic())
