"""Addresses of Redis and Valkey, and their clients::

    redis://[user:password@]host[:6379][/0]            one server; rediss:// over TLS
    unix:///run/redis.sock[?db=0]                      one server, by its Unix socket
    redis+cluster://[user:password@]h1[:6379],h2,…     a cluster; the other nodes are discovered from these
    redis+sentinel://[user:password@]h1[:26379],h2,…/service[/0]
                                                       the master of a service, found through these sentinels

``rediss+cluster://`` and ``rediss+sentinel://`` use TLS for servers and sentinels. Options follow a question mark:
`ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile` are paths of files, ``ssl_check_hostname=false`` accepts a certificate
for another name, and ``ssl_cert_reqs=none`` any certificate. User and password of an address are those of the servers;
sentinels that have their own take the options `sentinel_username` and `sentinel_password`.

Error messages never include the part between ``//`` and the path, nor the value of an option that takes text: they hold
passwords, also in a mistyped address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel

from ...core.errors import ConfigurationError, closest, quoted
from ..shared import clean_address, read_options

Client: TypeAlias = "Redis | RedisCluster"
Wrong: TypeAlias = Callable[[str], ConfigurationError]
Hosts: TypeAlias = tuple[tuple[str, int], ...]

EXAMPLE: Final = "redis://localhost:6379/0"
ESCAPES: Final = "in a user or password, write : as %3A, @ as %40, / as %2F, ? as %3F and # as %23"


class _Kind(Enum):
    """What an address leads to."""

    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"
    SOCKET = "socket"


class _Parts(NamedTuple):
    """The parts of an address, behind its scheme; empty where they are left out."""

    user: str
    password: str
    hosts: str
    path: str
    query: str


_KINDS: Final = {
    "redis": _Kind.SERVER,
    "rediss": _Kind.SERVER,
    "redis+cluster": _Kind.CLUSTER,
    "rediss+cluster": _Kind.CLUSTER,
    "redis+sentinel": _Kind.SENTINEL,
    "rediss+sentinel": _Kind.SENTINEL,
    "unix": _Kind.SOCKET,
}
SCHEMES: Final = tuple(_KINDS)
_PORT: Final = 6_379
_SENTINEL_PORT: Final = 26_379
_SHAPE: Final = re.compile(r"(?:([^/?#@:]*):([^/?#@]*)@)?([^/?#@]*)(/[^?#]*)?(?:\?([^#]*))?")
"""An address without its scheme; its groups are `_Parts`."""
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]@]+))(?::([0-9]{1,5}))?")
_DATABASE: Final = re.compile(r"[0-9]{1,5}")
_VERIFY: Final = ("none", "optional", "required")
_SENTINEL_OPTIONS: Final[dict[str, type]] = {"sentinel_username": str, "sentinel_password": str}
_OPTIONS: Final[dict[_Kind, dict[str, type]]] = {_Kind.SOCKET: {"db": int}, _Kind.SENTINEL: _SENTINEL_OPTIONS}
_TLS_OPTIONS: Final[dict[str, type]] = {
    **dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str),
    "ssl_check_hostname": bool,
}
CLIENT_OPTIONS: Final = (*_OPTIONS[_Kind.SOCKET], *_SENTINEL_OPTIONS, *_TLS_OPTIONS)
"""The options of addresses that clients have, of some kinds."""


def open_client(url: str) -> Client:
    """Create the client for an address. It does not connect before it is used.

    Raises:
        ConfigurationError: The address is invalid.
    """
    scheme, (user, password, written_hosts, path, query) = _split(url)
    kind = _KINDS[scheme]
    is_tls = scheme.startswith("rediss")
    wrong = partial(_wrong, scheme)
    accepted = dict(_OPTIONS.get(kind, {}))
    if is_tls:
        accepted = _TLS_OPTIONS | accepted
    given = read_options(query, accepted, f"store address: {scheme}://…")
    of_sentinels = _of_sentinels(given, wrong)
    options: dict[str, Any] = {}
    if user or password:
        options = {"username": unquote(user) or None, "password": unquote(password)}
    if kind is _Kind.SOCKET:
        if written_hosts or len(path) < 2:
            raise wrong("expected the path of a Unix socket, for example unix:///run/redis.sock")
        return Redis(unix_socket_path=unquote(path), **given, **options)
    if is_tls:
        options |= _tls(given, wrong)
    if kind is _Kind.SENTINEL:
        hosts = _hosts(written_hosts, _SENTINEL_PORT, wrong)
        service, _, number = path[1:].partition("/")
        return _master(hosts, service, _database(number, wrong), options, of_sentinels, wrong)
    hosts = _hosts(written_hosts, _PORT, wrong)
    database = _database(path[1:], wrong)
    if kind is _Kind.CLUSTER:
        if database:
            raise wrong(f"a cluster has only database 0, not {database}")
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **options)
    if len(hosts) != 1:
        raise wrong(f"expected one host, not {len(hosts)}; for several, use {scheme}+cluster or {scheme}+sentinel")
    ((host, port),) = hosts
    return Redis(host=host, port=port, db=database, **options)


def _database(number: str, wrong: Wrong) -> int:
    """Return the number of a database; 0 if none is given."""
    if number and not _DATABASE.fullmatch(number):
        raise wrong(f"expected the number of a database, 0 to 99999, for example /0; {ESCAPES}")
    return int(number or 0)


def _split(url: str) -> tuple[str, _Parts]:
    """Return the scheme, and the parts behind it."""
    scheme = rest = ""
    if isinstance(url, str):
        name, _, rest = clean_address(url).partition("://")
        scheme = name.lower()
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"store address: expected one like {EXAMPLE!r}, with a scheme of {', '.join(SCHEMES)}"
            f"{closest(scheme, SCHEMES)}"
        )
    shape = _SHAPE.fullmatch(rest)
    if shape is None:
        raise _wrong(scheme, f"expected 'user:password@' or ':password@' before the host; {ESCAPES}")
    return scheme, _Parts._make(shape.groups(""))


def _tls(found: dict[str, Any], wrong: Wrong) -> dict[str, Any]:
    """Return the options of TLS for the client."""
    verify = found.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")  # as Python's `ssl` writes it
    if verify not in _VERIFY:
        raise wrong(f"ssl_cert_reqs needs none, optional or required, not {quoted(verify)}")
    compares_names = verify != "none"  # without a certificate to verify there is no name to compare
    if not compares_names and found.get("ssl_check_hostname"):
        raise wrong("ssl_check_hostname=true needs a certificate; write ssl_cert_reqs=required, or leave it out")
    return {"ssl": True, "ssl_check_hostname": compares_names, **found, "ssl_cert_reqs": verify}


def _of_sentinels(found: dict[str, Any], wrong: Wrong) -> dict[str, str]:
    """Take the user and the password of sentinels out of the options of an address, and return them for the client."""
    own: dict[str, str] = {}
    for name in _SENTINEL_OPTIONS:
        if name in found:
            own[name.removeprefix("sentinel_")] = found.pop(name)
    if own and "password" not in own:
        raise wrong("sentinel_username needs sentinel_password, too")
    return own


def _master(
    hosts: Hosts, service: str, database: int, options: dict[str, Any], of_sentinels: dict[str, str], wrong: Wrong
) -> Redis:
    """Return the client for the master of a Sentinel service."""
    if not service or "@" in service:
        raise wrong(f"expected the name of a service, for example redis+sentinel://localhost:26379/mymaster; {ESCAPES}")
    # The credentials are those of the servers; sentinels have separate users, and use the same TLS.
    own = options.copy()
    own.pop("username", None)
    own.pop("password", None)
    own |= of_sentinels
    sentinel = Sentinel(list(hosts), sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(unquote(service), db=database, **options)
    return master


def _wrong(scheme: str, what: str) -> ConfigurationError:
    """Return the error about an address, which may hold a password, and so is not shown."""
    return ConfigurationError(f"store address: {scheme}://…: {what}")


def _hosts(written: str, default_port: int, wrong: Wrong) -> Hosts:
    """Return the hosts of an address, and their ports."""
    hosts = []
    for part in written.split(","):
        found = _HOST.fullmatch(part)
        port = 0
        if found is not None:
            port = int(found[3] or default_port)
        if found is None or not 0 < port < 65_536:
            raise wrong(f"expected host:port, with a port from 1 to 65535; {ESCAPES}")
        ipv6, name, _ = found.groups()
        hosts.append((ipv6 or name, port))
    return tuple(hosts)
