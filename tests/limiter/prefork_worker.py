"""A process of a pool, in a module that is imported fast where the process is spawned.

As a program it forks children while its other threads count, and says how many of them got an answer.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading

from slidegate import Limiter

AMOUNT = 60
PATIENCE_S = 60.0

limiters: dict[str, Limiter] = {}
"""The limiters of this process by their addresses; a forked child begins with those of its parent."""


def hit_often(url: str) -> int:
    limiter = limiters.setdefault(url, Limiter.from_url(url, deadline="60s"))
    return sum(bool(limiter.sync.hit("everybody", f"{AMOUNT}/hour")) for _ in range(AMOUNT))


def answer(limiter: Limiter) -> None:
    """Fail, in a child, unless the store answers."""
    assert limiter.sync.hit("user:2", "1000/hour"), "the store of a child does not answer"


def forked_answer(limiter: Limiter) -> bool:
    """Return whether a child that is forked now gets an answer."""
    process = multiprocessing.get_context("fork").Process(target=answer, args=(limiter,))
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    return process.exitcode == 0


def main(url: str, children: int) -> None:
    """Write how many of so many children got an answer while three threads counted."""
    limiter = Limiter.from_url(url, deadline="60s", on_error="allow")
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            limiter.sync.hit("user:1", "1000000/hour", 3)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        sys.stdout.write(str(sum(forked_answer(limiter) for _ in range(children))))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        limiter.sync.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
