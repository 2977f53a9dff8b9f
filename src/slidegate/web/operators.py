"""Networks by who runs them and where: a key, conditions and bans by files in MaxMind's format.

A file says of each address which operator it belongs to (the number of an autonomous system) or in which country it is.
It is followed as lists are: another version is read in a thread and takes over when it is complete. It is kept in
memory, and the reader in Python reads it: that in C is faster, but ends the process at a record that is damaged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.types import Scope

from ..core.addresses import parse_network
from ..core.bans.policy import PRIVATE
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.keys import KeyOf
from ..limiter.operators import Place
from .file_watcher import FileWatcher, Versions, read_whole
from .keys import KeyCondition, invalid

if TYPE_CHECKING:
    from maxminddb import Reader

MAX_BYTES: Final = 512 << 20
UNKNOWN: Final = "unknown"
_BY: Final = ("asn", "country")
_RECORDS_LOOKED_AT: Final = 1_000
"""How many records are read to see what a file says of an address."""
_ASN_FIELDS: Final = ("autonomous_system_number", "asn")
_NAME_FIELDS: Final = ("autonomous_system_organization", "as_name", "name")
_COUNTRY_FIELDS: Final = ("country", "country_code", "registered_country")
_NOWHERE: Final = Place()


class NetworkFile(FileWatcher):
    """A file in MaxMind's format, and the version of it that is at work.

    Args:
        path: The file.
        clock: Returns seconds; measures the time between two looks.

    Attributes:
        path: The same.
        has: What the file says of addresses: ``"asn"``, ``"country"`` or both.
        generation: How often the file was read again and taken.

    Raises:
        ConfigurationError: It cannot be read, or says neither operators nor countries.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self.generation = 0
        super().__init__([path], self._read_again, clock)
        self._reader, self.has = _opened(path)
        self._known: dict[str, Place] = {}
        self._throttle = Throttle()

    def find(self, client_key: str) -> Place:
        """Return what the file says of the address of a client, by its key; private addresses are nowhere."""
        self.look_when_due()
        return self._known.get(client_key) or remember(self._known, client_key, self._find(client_key))

    def _find(self, client_key: str) -> Place:
        try:
            record = self._reader.get(client_key.partition("/")[0])
            version, first, _ = parse_network(client_key)
        except ValueError:  # no address, or one of IPv6 in a file of IPv4
            return _NOWHERE
        except Exception:
            left_out = self._throttle.left_out(None, time.monotonic())
            if left_out is not None:
                said = "%s is damaged: it cannot be read for %s, which is taken for unknown (suppressed=%d)"
                logger.exception(said, self.path, client_key, left_out)
            return _NOWHERE
        return _NOWHERE if record is None or PRIVATE.covers(version, first) else _place(record)

    def _read_again(self, changed: Versions) -> Callable[[], None]:
        name = os.path.basename(self.path)
        try:
            reader, has = _opened(self.path)
            if not has >= self.has:
                raise ConfigurationError(f"{self.path}: says less of an address than the version before")
        except ConfigurationError as error:
            rejected = Event("list_rejected", f"{name!r} stays as it is: {error}", {"list": name, "path": self.path})
            return lambda: self._tell(rejected)
        count = reader.metadata().node_count
        details = {"list": name, "path": self.path, "count": count}
        reloaded = Event("list_reloaded", f"{name!r} was read again: {count} nodes", details)

        def put_to_work() -> None:
            self._reader, self._known, self.has = reader, {}, has
            self.generation += 1
            self._tell(reloaded)

        return put_to_work

    def _tell(self, event: Event) -> None:
        logger.warning("%s: %s", event.kind, event.message)
        self._observers.tell(event)


class Network:
    """A key by the operator or the country of the client's address; made by `network`.

    Attributes:
        file: The file that says so.
        by: What is counted together: ``"asn"`` or ``"country"``.
    """

    shared: Final = True

    def __init__(self, file: NetworkFile, by: str) -> None:
        self.file = file
        self.by = by
        self.identity = f"network:{by}"

    def __repr__(self) -> str:
        return f"<key {self.identity} of {os.path.basename(self.file.path)}>"

    def find(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request: ``asn:132203``, ``country:NL``, or ``asn:unknown``."""
        return _key(self.by, self.file.find(client_key))

    def of(self, value: str | bytes | int) -> KeyOf:
        """Return the key of an operator or a country, for the methods of a limiter: ``limiter.reset(where.of("NL"))``.

        Raises:
            InvalidKey: It is no number of an autonomous system, or no code of a country.
        """
        try:
            (read,) = self._read((value,))
        except ConfigurationError:
            expected = "a number such as 132203" if self.by == "asn" else 'a code such as "NL"'
            raise invalid("network", expected, value) from None
        return KeyOf(self.identity, lambda keys: f"{self.by}:{read}")

    def is_in(self, *values: str | int) -> KeyCondition:
        """Return a condition for `Rule(when=...)`: the address is in one of these countries, or of such an operator.

        Args:
            values: Codes of countries (ISO 3166), ``"NL"``, or numbers of autonomous systems, 132203.

        Raises:
            ConfigurationError: There are none, one of them can be neither, or the file does not say it.
        """
        wanted = frozenset(self._read(values))

        def holds(scope: Scope, client_key: str) -> bool:
            place = self.file.find(client_key)
            return place.asn in wanted or place.country in wanted

        return KeyCondition(f"network {sorted(map(str, wanted))}", holds)

    def _read(self, values: Iterable[Any]) -> Iterator[str | int]:
        example = 'network: expected countries such as "NL" or operators such as 132203'
        if not values:
            raise ConfigurationError(f"{example}, not nothing")
        for value in values:
            is_asn = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**32
            is_country = isinstance(value, str) and len(value) == 2 and value.isascii() and value.isalpha()
            if not is_asn and not is_country:
                raise ConfigurationError(f"{example}, not {quoted(value)}")
            _check_says(self.file, "asn" if is_asn else "country")
            yield value.upper() if isinstance(value, str) else value


def network(
    path: str | PathLike[str],
    *,
    by: Literal["asn", "country"] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Network:
    """Count all addresses of one operator, or of one country, together: ``key=network("GeoLite2-ASN.mmdb")``.

    Any file in MaxMind's format will do that has numbers of autonomous systems or codes of countries, such as those of
    MaxMind, DB-IP and IPinfo. The address is the one that the middleware's `client` finds. Private addresses, and those
    that the file does not have, are ``unknown``. Its method `is_in` makes conditions.

    Args:
        path: The file. Another version that is put in its place is read and taken while serving.
        by: What to count by where the file says both; by default the operator.
        clock: Returns seconds; measures the time between two looks at the file.

    Raises:
        ConfigurationError: The file cannot be read, or does not say what is asked for; or `maxminddb` is not installed.
    """
    if by is not None and by not in _BY:
        raise ConfigurationError(f'network: by: expected "asn" or "country", not {quoted(by)}{closest(str(by), _BY)}')
    if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
        raise ConfigurationError(f'network: expected a file, for example "GeoLite2-ASN.mmdb", not {quoted(path)}')
    file = NetworkFile(os.fspath(path), clock)
    chosen: str = by or next(one for one in _BY if one in file.has)
    _check_says(file, chosen)
    return Network(file, chosen)


def _check_says(file: NetworkFile, what: str) -> None:
    if what not in file.has:
        named = {"asn": "operator (autonomous_system_number)", "country": "country (iso_code)"}[what]
        raise ConfigurationError(f"network: {file.path} does not say the {named} of an address")


def _key(by: str, place: Place) -> str:
    if by == "asn":
        return f"asn:{UNKNOWN if place.asn is None else place.asn}"
    return f"country:{place.country or UNKNOWN}"


def _place(record: Any) -> Place:
    """Read the record of an address, whoever made the file."""
    if not isinstance(record, dict):
        return _NOWHERE
    asn, country = _first(record, _ASN_FIELDS), _first(record, _COUNTRY_FIELDS)
    if isinstance(asn, str) and asn[:2].upper() == "AS":
        asn = asn[2:]
    number = int(asn) if isinstance(asn, int) or (isinstance(asn, str) and asn.isdecimal() and len(asn) < 11) else 0
    if isinstance(country, dict):
        country = country.get("iso_code")
    code = country.upper() if isinstance(country, str) and len(country) == 2 else ""
    return Place(number or None, code, str(_first(record, _NAME_FIELDS) or "")[:64])


def _first(record: dict[str, Any], fields: tuple[str, ...]) -> Any:
    return next((record[field] for field in fields if record.get(field)), None)


def _kinds(reader: Reader) -> frozenset[str]:
    """Return which of operators and countries the first records of a file have."""
    found: set[str] = set()
    for _, record in islice(reader, _RECORDS_LOOKED_AT):
        place = _place(record)
        found |= {by for by, value in zip(_BY, place, strict=False) if value}
        if len(found) == len(_BY):
            break
    return frozenset(found)


def _opened(path: str) -> tuple[Reader, frozenset[str]]:
    """Read a file into memory, where nobody changes it; return its reader, and what it says of addresses."""
    try:
        import maxminddb
    except ImportError:
        raise ConfigurationError(
            'network: needs the package maxminddb; install it with pip install "slidegate[networks]"'
        ) from None
    try:
        content = read_whole(path, MAX_BYTES)
    except OSError as error:
        raise ConfigurationError(f"network: cannot read {path}: {error.strerror or error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"network: {path}: {error}") from None
    try:
        reader = maxminddb.open_database(BytesIO(content), maxminddb.MODE_FD)  # always the reader in Python
        kinds = _kinds(reader)
    except Exception as error:  # whatever the readers make of a file that is none
        raise ConfigurationError(f"network: cannot read {path}: {error}") from None
    if not kinds:
        raise ConfigurationError(f"network: {path} says neither operators nor countries of addresses")
    return reader, kinds
