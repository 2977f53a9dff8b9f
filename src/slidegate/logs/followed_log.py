"""A log that is followed while the server writes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import anyio.to_thread

from ..core.errors import ConfigurationError, quoted
from .access_record import AccessRecord
from .line_parser import LineParser
from .parsed_lines import LogCounts, parse_block
from .tails import Tail


class FollowedLog:
    """The records of a log as the server writes them, each once, also while the log is rotated.

    Records come in the order in which they were written. One thread or task reads at a time.

    Args:
        path: The file, plain text; it need not be there yet.
        format: The format string of nginx or Apache; None for the known formats.
        fields: The names of the fields of JSON lines, as `AccessLogs` takes them.
        from_start: Whether to begin with the lines that the file has already.

    Attributes:
        counts: The lines so far, and the fate of each.

    Raises:
        ConfigurationError: The path is a directory or standard input; or the format or the fields cannot be used.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        format: str | None = None,
        fields: Mapping[str, str] | None = None,
        from_start: bool = False,
    ) -> None:
        self.path = Path(path)
        if str(path) == "-" or self.path.is_dir():
            raise ConfigurationError(
                f"cannot follow {quoted(str(path))}; expected the path of a file, such as '/var/log/nginx/access.log'"
            )
        self.counts = LogCounts()
        self._parser = LineParser(format, fields)
        self._tail = Tail(self.path, from_start=from_start)

    def poll(self) -> list[AccessRecord] | None:
        """Return records that were added since the last call; None if nothing was.

        There may be more of them. A list without records stands for lines that were broken.
        """
        blocks = self._tail.look()
        records: list[AccessRecord] = []
        for block in blocks:
            parsed = parse_block(self._parser, block)
            self.counts.add(parsed, str(self.path), self.counts.lines)
            records += parsed.records
        return records if blocks else None

    def follow(self, wait: Callable[[], object]) -> Iterator[AccessRecord]:
        """Yield records as they come.

        Args:
            wait: Is called where there is nothing new, and waits a while. If it returns something true, the iteration
                ends, so the `wait` of a `threading.Event` will do.
        """
        try:
            while True:
                records = self.poll()
                if records is None:
                    if wait():
                        return
                else:
                    yield from records
        finally:
            self.close()

    async def follow_async(self, wait: Callable[[], Awaitable[object]]) -> AsyncIterator[AccessRecord]:
        """Yield records as they come; files are read in a thread.

        Args:
            wait: Is awaited where there is nothing new. If it returns something true, the iteration ends.
        """
        try:
            while True:
                records = await anyio.to_thread.run_sync(self.poll)
                if records is None:
                    if await wait():
                        return
                else:
                    for record in records:
                        yield record
        finally:
            self.close()

    def close(self) -> None:
        """Close the files."""
        self._tail.close()
