"""Parsing on several cores: blocks of lines go out to processes, and their records come back in the same order.

This process reads and unpacks, because that is quick, and the others parse. They are spawned, not forked, so threads of
the caller do no harm; Ctrl-C is not for them but for the process that they belong to, and they end with it.

Each process has a pipe of its own and at most one block, so it is never sent a block while it waits for us to take its
records, and nobody waits in a circle. If a process dies, its pipe ends, and we hear of it at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection

from ..core.errors import ConfigurationError, SlidegateError, quoted
from .line_parser import LineParser
from .parsed_lines import Parsed, packed, parse_block, unpacked
from .raw_lines import Block

_JOIN_S = 10.0


class Cores:
    """Parses blocks, in this process or in several.

    Args:
        processes: How many processes parse; 1 for this one alone, None for one on each core that it may use.
        format: As `LineParser` takes it.
        fields: As `LineParser` takes them.

    Raises:
        ConfigurationError: The number, the format or the fields cannot be used.
    """

    def __init__(self, processes: int | None, format: str | None, fields: Mapping[str, str] | None) -> None:
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
            raise ConfigurationError(
                f"expected a number of processes from 1 on, or None for all cores, such as 4; not {quoted(processes)}"
            )
        self._processes = processes or usable_cores()
        self._custom = format, fields
        self._parser = LineParser(format, fields)
        self._workers: list[_Worker] = []
        self._turns: Iterator[_Worker] = iter(())

    def parsed(self, blocks: Iterator[Block]) -> Iterator[Parsed]:
        """Yield each block's records; several files may be read side by side.

        Raises:
            SlidegateError: A process that parsed was ended by somebody else.
        """
        # For the first records of a log, or for a small one, another process would not pay.
        for block in islice(blocks, None if self._processes == 1 else 2):
            yield parse_block(self._parser, block)
        under_way: deque[_Errand] = deque()
        for block in blocks:
            under_way.append(self._next().take(block))
            if len(under_way) >= self._processes:
                yield unpacked(under_way.popleft().result())
        while under_way:
            yield unpacked(under_way.popleft().result())

    def close(self) -> None:
        """End the other processes."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(_JOIN_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def _next(self) -> _Worker:
        if not self._workers:
            with _no_interrupts():
                self._workers += [_Worker(self._custom) for _ in range(self._processes)]
            self._turns = cycle(self._workers)
        return next(self._turns)


class _Worker:
    """A process that parses, and our end of its pipe."""

    def __init__(self, custom: tuple[str | None, Mapping[str, str] | None]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, other = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(other, custom), daemon=True)
        self.process.start()
        other.close()  # or the pipe would not end with the process
        self._errand: _Errand | None = None

    def take(self, block: Block) -> _Errand:
        """Hand a block over."""
        self.settle()
        try:
            self.connection.send(block)
        except OSError as error:
            raise _ended() from error
        self._errand = _Errand(self)
        return self._errand

    def settle(self) -> None:
        """Take the records of the block that is under way, if there is one."""
        errand, self._errand = self._errand, None
        if errand is not None:
            try:
                errand.data = self.connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise _ended() from error


class _Errand:
    """A block that a process has, and its records once they are here."""

    def __init__(self, worker: _Worker) -> None:
        self.data: bytes | None = None
        self._worker = worker

    def result(self) -> bytes:
        """Return the records; wait for them if need be."""
        if self.data is None:
            self._worker.settle()
        if self.data is None:
            raise _ended()
        return self.data


def usable_cores() -> int:
    """Return on how many cores this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Windows, macOS
        return os.cpu_count() or 1


def _ended() -> SlidegateError:
    return SlidegateError(
        "a process that parsed the log has ended; where memory is short, read it with fewer processes, and a script "
        'needs `if __name__ == "__main__":` around its work'
    )


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; new processes inherit that, and this one gets it afterwards."""
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is None:  # Windows
        yield
        return
    before = mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)


def _work(connection: Connection, custom: tuple[str | None, Mapping[str, str] | None]) -> None:
    """Parse what comes, until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = LineParser(*custom)
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(packed(parse_block(parser, connection.recv())))
