"""The public set of networks, which can be read from a file."""

from __future__ import annotations

from os import PathLike
from typing import Self

from ..core import networks
from .breadth import check_breadth


class Networks(networks.Networks):
    """An immutable set of IPv4 and IPv6 networks.

    ``"192.0.2.7" in networks`` takes text or an `ipaddress` object; a value that is not an address is in no network.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry cannot be read.
    """

    __slots__ = ()

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        strict: bool = True,
        format: str = "auto",
        column: str | int | None = None,
    ) -> Self:
        """Read a file of networks, in any of the formats that `NetworkFile` has.

        An entry that ends some day does not end here, since a set never changes: `NetworkFiles` keeps to ends. Entries
        that were over when the file was written are left out.

        Args:
            path: The file.
            strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
            format: The name of the format; by default the first lines tell.
            column: The column of a CSV file, by its name or by its number from 1; by default the first.

        Raises:
            ConfigurationError: The file or a line of it cannot be read, or it lists everybody.
        """
        from .reading import NetworkReading  # most processes read no file of networks

        reading = NetworkReading(path, strict=strict, format=format, column=column)
        made = cls.of_ranges(
            (version, first, last)
            for version, first, last, ends_us in reading
            if ends_us is None or ends_us > reading.written_us
        )
        check_breadth([made], str(path))
        return made
