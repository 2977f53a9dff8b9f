"""Networks by operator and country: a key, conditions and bans based on files in MaxMind's format.

A file maps addresses to their operator (the number of an autonomous system) or country. It is reloaded like the files
of lists: a new version is read in a thread and becomes active when it is complete. It stays in memory and is read by
maxminddb's reader in Python, which raises at a damaged record; each client is looked up once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.types import Scope

from .._watcher import FollowedFile, read_whole
from ..core.addresses import parse_address
from ..core.bans.policy import PRIVATE
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import Throttle, logger
from ..core.memo import MANY, remember
from ..core.passwords import without_passwords
from ..limiter import Limiter
from ..limiter.bans import Place
from ..web.keys import Key, KeyCondition

if TYPE_CHECKING:
    from maxminddb import Reader

MAX_BYTES: Final = 512 << 20
UNKNOWN: Final = "unknown"
_BY: Final = {"asn": "operator (autonomous_system_number)", "country": "country (iso_code)"}
"""What can be counted by, and what it is called in a file."""
_RECORDS_SAMPLED: Final = 1_000
"""How many records are read to determine whether a file has operators, countries or both."""
_PLACES: Final = 'expected countries such as "NL" or operators such as 132203'
_NOWHERE: Final = Place()


class NetworkFile(FollowedFile):
    """A file in MaxMind's format, with its active version.

    Attributes:
        has: The facts in its records: ``"asn"``, ``"country"`` or both.

    Raises:
        ConfigurationError: It cannot be read, or contains neither operators nor countries.
    """

    reloaded = "list {name!r}: nodes of its search tree: {count}"

    def __init__(self, path: str) -> None:
        super().__init__(path, os.path.basename(path))
        self._by_client: dict[str, Place] = {}
        self._throttle = Throttle()
        self._reader, self.has = _opened(path)

    def find(self, client_key: str) -> Place:
        """Return the operator and country of a client's address, given by its key; unknown for private addresses."""
        self.check_if_due()
        return self._by_client.get(client_key) or remember(self._by_client, client_key, self._find(client_key), MANY)

    def _find(self, client_key: str) -> Place:
        host = client_key.partition("/")[0]
        address = parse_address(host)
        if address is None or PRIVATE.covers(*address):
            return _NOWHERE
        try:
            return _place(self._reader.get(host))
        except ValueError:  # an IPv6 address in an IPv4 file
            return _NOWHERE
        except Exception:
            left_out = self._throttle.left_out(None, time.monotonic())
            if left_out is not None:
                message = "looking up %s for %s failed, so operator and country are unknown%s"
                logger.exception(message, self.path, client_key, left_out)
            return _NOWHERE

    def load(self) -> tuple[int, Callable[[], None]]:
        reader, has = _opened(self.path)
        if not has >= self.has:
            raise ConfigurationError(f"{self.path}: lacks operators or countries that the old version has")

        def apply() -> None:
            self._reader, self._by_client, self.has = reader, {}, has

        return reader.metadata().node_count, apply


class Network(Key):
    """A key by the operator or the country of the client's address; created by `network`.

    Args:
        file: The file with operators or countries.
        by: What to count by, ``"asn"`` or ``"country"``; by default the first of them that the file contains.

    Raises:
        ConfigurationError: `by` is neither, or the file does not contain it.
    """

    shared = True
    file: NetworkFile

    def __init__(self, file: NetworkFile, by: str | None = None) -> None:
        if by not in (None, *_BY):
            raise ConfigurationError(f'expected "asn" or "country", not {quoted(by)}{closest(by, _BY)}', "by")
        self.file = file
        self.by: str = by or next(kind for kind in _BY if kind in file.has)
        self.identity = f"network:{self.by}"
        _check_says(file, self.by, "by")

    def read(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """See `Key.read`: ``asn:132203``, ``country:NL``, or ``asn:unknown``."""
        return f"{self.by}:{getattr(self.file.find(client_key), self.by) or UNKNOWN}"

    def is_in(self, *values: str | int) -> KeyCondition:
        """Return a condition for `Rule(when=...)`: the address belongs to one of these countries or operators.

        Args:
            values: Codes of countries (ISO 3166), ``"NL"``, or numbers of autonomous systems, 132203.

        Raises:
            ConfigurationError: There are no values, one is neither of these, or the file does not contain that kind.
        """
        if not values:
            raise ConfigurationError(f"{_PLACES}, not nothing", "is_in")
        places = frozenset(map(_parsed, values))
        for place in places:
            kind = "asn"
            if isinstance(place, str):
                kind = "country"
            _check_says(self.file, kind, "is_in")

        def is_true(scope: Scope, client_key: str) -> bool:
            place = self.file.find(client_key)
            return place.asn in places or place.country in places

        return KeyCondition(f"network {sorted(map(str, places))}", is_true)


def network(path: str | PathLike[str], *, by: Literal["asn", "country"] | None = None) -> Network:
    """Count all addresses of one operator or one country together: ``key=network("GeoLite2-ASN.mmdb")``.

    The file must be in MaxMind's format and contain numbers of autonomous systems or codes of countries, such as those
    of MaxMind, DB-IP and IPinfo. The address is that of the middleware's `client`. Private addresses, and addresses
    that are not in the file, are ``unknown``. The method `is_in` returns conditions.

    Args:
        path: The file. A new version is reloaded while serving.
        by: What to count by if the file has both; by default the operator.

    Raises:
        ConfigurationError: The file cannot be read or lacks operators or countries, or `maxminddb` is not installed.
    """
    if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
        raise ConfigurationError(f'expected a file, for example "GeoLite2-ASN.mmdb", not {quoted(path)}', "network")
    return Network(NetworkFile(os.fspath(path)), by)


def _check_says(file: NetworkFile, kind: str, option: str) -> None:
    if kind not in file.has:
        raise ConfigurationError(
            f"{file.path} does not contain the {_BY[kind]} of an address; use a file that does", option
        )


def _parsed(value: object) -> str | int:
    """Return the number of an operator, or the code of a country in capital letters."""
    if isinstance(value, str) and len(value) == 2 and value.isascii() and value.isalpha():
        return value.upper()
    if type(value) is int and 0 < value < 2**32:
        return value
    raise ConfigurationError(f"{_PLACES}, not {quoted(value)}", "is_in")


def _place(record: Any) -> Place:
    """Parse the record of an address in the formats of MaxMind, DB-IP and IPinfo."""
    if not isinstance(record, dict):
        return _NOWHERE
    asn = record.get("autonomous_system_number") or record.get("asn")
    country = record.get("country") or record.get("country_code") or record.get("registered_country")
    if isinstance(country, dict):
        country = country.get("iso_code")
    if not isinstance(country, str) or len(country) != 2:
        country = ""
    return Place(_number(asn), country.upper())


def _number(asn: Any) -> int | None:
    """Return the number of an operator, also given as text, ``AS64500`` or ``64500``; None if it is invalid."""
    match = re.fullmatch("(?:AS)?([0-9]{1,10})", str(asn), re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    return int(match[1]) or None


def _opened(path: str) -> tuple[Reader, frozenset[str]]:
    """Read a file into memory.

    Returns:
        Its reader, and whether it contains operators, countries or both.

    Raises:
        ConfigurationError: It cannot be read, or contains neither operators nor countries.
    """
    try:
        import maxminddb
    except ModuleNotFoundError:
        raise ConfigurationError(
            'needs the package maxminddb; install it with pip install "slidegate[networks]"', "network"
        ) from None
    content = read_whole(path, MAX_BYTES, "network")
    try:
        reader = maxminddb.open_database(BytesIO(content), maxminddb.MODE_FD)
        records = [_place(record) for _, record in islice(reader, _RECORDS_SAMPLED)]
    except Exception as error:  # the reader raises many types for a file in another format
        raise ConfigurationError(f"cannot read {without_passwords(str(path))}: {error}", "network") from None
    kinds: set[str] = set()
    for place in records:
        for kind, value in zip(_BY, place, strict=False):
            if value:
                kinds.add(kind)
    if not kinds:
        raise ConfigurationError(f"{path} contains neither operators nor countries of addresses", "network")
    return reader, frozenset(kinds)
