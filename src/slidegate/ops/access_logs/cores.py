"""Parsing on several cores: blocks of lines go out to processes, and their records come back in the same order.

This process reads and unpacks, because that is quick, and the others parse. They are spawned, not forked, so threads of
the caller do no harm; they ignore Ctrl-C, which is for the process that they belong to, and end with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from ...core.errors import ConfigurationError, SlidegateError, quoted
from .line_parser import LineParser
from .parsed_lines import Parsed, packed, parse_block, unpacked
from .raw_lines import Block

_parser: LineParser | None = None
"""In a process that parses: its parser."""


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
            raise ConfigurationError(f"expected a number of processes from 1 on, or None for all cores, such as 4; "
                                     f"not {quoted(processes)}")  # fmt: skip
        self._processes = processes or usable_cores()
        self._custom = format, fields
        self._parser = LineParser(format, fields)
        self._pool: ProcessPoolExecutor | None = None

    def parsed(self, blocks: Iterator[Block]) -> Iterator[Parsed]:
        """Yield each block's records; several files may be read side by side.

        Raises:
            SlidegateError: A process that parsed was ended by somebody else.
        """
        # For the first records of a log, or for a small one, another process would not pay.
        for block in islice(blocks, None if self._processes == 1 else 2):
            yield parse_block(self._parser, block)
        under_way: deque[Future[bytes]] = deque()
        try:
            for block in blocks:
                under_way.append(self._submit(block))
                if len(under_way) > self._processes + 1:
                    yield unpacked(under_way.popleft().result())
            while under_way:
                yield unpacked(under_way.popleft().result())
        except BrokenProcessPool as error:
            raise SlidegateError(
                "a process that read the log has ended; where memory is short, read it with fewer processes"
            ) from error
        finally:
            for future in under_way:
                future.cancel()

    def close(self) -> None:
        """End the other processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, block: Block) -> Future[bytes]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._processes, multiprocessing.get_context("spawn"), _begin, self._custom
            )  # fmt: skip
        return self._pool.submit(_parse, block)


def usable_cores() -> int:
    """Return on how many cores this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Windows, macOS
        return os.cpu_count() or 1


def _begin(format: str | None, fields: Mapping[str, str] | None) -> None:
    """Make a new process ready to parse."""
    global _parser
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _parser = LineParser(format, fields)


def _parse(block: Block) -> bytes:
    assert _parser is not None
    return packed(parse_block(_parser, block))
