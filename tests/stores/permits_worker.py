"""A process that holds permits on a shared store: ``python -m tests.stores.permits_worker URL AMOUNT BOARD PLACE``.

It obeys the lines of its input, and answers each with a line. ``take`` says "yes" or "no", ``leave`` hands the oldest
permit back and says whether the store took it, and ``held`` counts its permits. After ``busy SEED`` it takes and leaves
at random, until ``calm`` has it hand everything back.

It keeps the number of its requests under way in a byte of the file BOARD, from after a place is taken until before it
is handed back. So the sum of the bytes of all workers is never more than the permits that are taken.
"""

import asyncio
import mmap
import random
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, Final

from slidegate import Limiter
from slidegate.core import Bucket, Concurrency, Decision

from ..contract.player import settle

ROOT: Final = Path(__file__).resolve().parents[2]
BOUND_S: Final = 60
KEY: Final = "ann"


class Worker:
    def __init__(self, url: str, amount: int, board: Path, place: int) -> None:
        command = [sys.executable, "-m", "tests.stores.permits_worker", url, str(amount), str(board), str(place)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def tell(self, order: str) -> None:
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, order: str) -> str:
        self.tell(order)
        return self.hear()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=BOUND_S)


class Holder:
    def __init__(self, limiter: Limiter, amount: int, board: mmap.mmap, place: int) -> None:
        self.store = limiter.store
        self.bucket = Bucket("render", [Concurrency(amount)])
        self.held: deque[Decision] = deque()
        self.board = board
        self.place = place
        self.busy: asyncio.Task[None] | None = None

    async def take(self) -> Any:
        asked = self.store.hit(((self.bucket, KEY, 1),))
        try:
            decision = await settle(asked)
        except asyncio.CancelledError:
            # As a limiter does: where the answer came in the very turn of the cancellation, nobody else knows of it.
            if isinstance(asked, asyncio.Future) and asked.done() and not asked.cancelled():
                self.note(asked.result())
            raise
        self.note(decision)
        return "yes" if decision.allowed else "no"

    def note(self, decision: Decision) -> None:
        if decision.allowed:
            self.held.append(decision)
            self.board[self.place] += 1

    async def leave(self) -> Any:
        self.board[self.place] -= 1
        return await settle(self.store.refund(self.held.popleft().take_back()))

    async def work(self, seed: int) -> None:
        chance = random.Random(seed)
        while True:
            if self.held and chance.random() < 0.5:
                await self.leave()
            else:
                await self.take()
            await asyncio.sleep(chance.random() / 200)

    async def obey(self, order: str, *given: str) -> object:
        match order:
            case "take":
                return await self.take()
            case "leave":
                return await self.leave()
            case "held":
                return self.store.permits_held()
            case "busy":
                self.busy = asyncio.ensure_future(self.work(int(given[0])))
            case "calm":
                self.busy.cancel()
                await asyncio.wait([self.busy])
                while self.held:
                    await self.leave()
        return "done"


async def main(url: str, amount: str, board: mmap.mmap, place: str) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Limiter.from_url(url) as limiter:
        holder = Holder(limiter, int(amount), board, int(place))
        while line := await reader.readline():
            sys.stdout.write(f"{await holder.obey(*line.decode().split())}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    URL, AMOUNT, BOARD, PLACE = sys.argv[1:]
    with open(BOARD, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        asyncio.run(main(URL, AMOUNT, shared, PLACE))
