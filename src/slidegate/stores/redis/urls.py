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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias
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
SCHEMES: Final = (*(f"redis{tls}{kind}" for kind in ("", "+cluster", "+sentinel") for tls in ("", "s")), "unix")
_SHAPE: Final = re.compile(r"(?:([^/?#@:]*):([^/?#@]*)@)?([^/?#@]*)(/[^?#]*)?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]@]+))(?::([0-9]{1,5}))?")
_DATABASE: Final = re.compile(r"[0-9]{1,5}")
_VERIFY: Final = ("none", "optional", "required")
_SENTINEL_OPTIONS: Final[dict[str, type]] = {"sentinel_username": str, "sentinel_password": str}
_OPTIONS: Final[dict[str, dict[str, type]]] = {"unix": {"db": int}, "sentinel": _SENTINEL_OPTIONS}
_TLS_OPTIONS: Final[dict[str, type]] = {
    **dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str),
    "ssl_check_hostname": bool,
}


def open_client(url: str) -> Client:
    """Create the client for an address. It does not connect before it is used.

    Raises:
        ConfigurationError: The address is invalid.
    """
    scheme, (user, password, place, path, query) = _split(url)
    wrong = partial(_wrong, scheme)
    options: dict[str, Any] = {}
    if user or password:
        options = {"username": unquote(user) or None, "password": unquote(password)}
    tls, kind = scheme.startswith("rediss"), scheme.partition("+")[2] or scheme.replace("rediss", "redis")
    known = (_TLS_OPTIONS if tls else {}) | _OPTIONS.get(kind, {})
    found = read_options(query, known, f"store address: {scheme}://…")
    of_sentinels = _of_sentinels(found, wrong)
    if kind == "unix":
        if place or len(path) < 2:
            raise wrong("expected the path of a Unix socket, for example unix:///run/redis.sock")
        return Redis(unix_socket_path=unquote(path), **found, **options)
    if tls:
        options |= _tls(found, wrong)
    service, _, number = path[1:].partition("/") if kind == "sentinel" else ("", "", path[1:])
    hosts = _hosts(place, 26_379 if kind == "sentinel" else 6_379, wrong)
    if number and not _DATABASE.fullmatch(number):
        raise wrong(f"expected the number of a database, 0 to 99999, for example /0; {ESCAPES}")
    database = int(number or 0)
    if kind == "sentinel":
        return _master(hosts, service, database, options, of_sentinels, wrong)
    if kind == "cluster" and database:
        raise wrong(f"a cluster has only database 0, not {database}")
    if kind == "cluster":
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in hosts], **options)
    if len(hosts) != 1:
        raise wrong(f"expected one host, not {len(hosts)}; for several, use {scheme}+cluster or {scheme}+sentinel")
    ((host, port),) = hosts
    return Redis(host=host, port=port, db=database, **options)


def _split(url: str) -> tuple[str, Sequence[str]]:
    """Return the scheme, and the user, the password, the hosts, the path and the options."""
    name, _, rest = clean_address(url).partition("://") if isinstance(url, str) else ("", "", "")
    scheme, shape = name.lower(), _SHAPE.fullmatch(rest)
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"store address: expected one like {EXAMPLE!r}, with a scheme of {', '.join(SCHEMES)}"
            f"{closest(scheme, SCHEMES)}"
        )
    if shape is None:
        raise _wrong(scheme, f"expected 'user:password@' or ':password@' before the host; {ESCAPES}")
    return scheme, shape.groups("")


def _tls(found: dict[str, Any], wrong: Wrong) -> dict[str, Any]:
    """Return the options of TLS; without a certificate to verify there is no name to compare."""
    verify = found.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")  # as Python's `ssl` writes it
    if verify not in _VERIFY:
        raise wrong(f"ssl_cert_reqs needs none, optional or required, not {quoted(verify)}")
    return {"ssl": True, "ssl_check_hostname": verify != "none", **found, "ssl_cert_reqs": verify}


def _of_sentinels(found: dict[str, Any], wrong: Wrong) -> dict[str, str]:
    """Take the user and the password of sentinels out of the options of an address."""
    own = {name.partition("_")[2]: found.pop(name) for name in _SENTINEL_OPTIONS if name in found}
    if own and "password" not in own:
        raise wrong("sentinel_username needs sentinel_password, too")
    return own


def _master(
    hosts: Hosts, service: str, database: int, options: dict[str, Any], of_sentinels: dict[str, str], wrong: Wrong
) -> Redis:
    """Return the client for the master of a Sentinel service."""
    if not service or "@" in service:
        raise wrong(f"expected the name of a service, for example redis+sentinel://localhost:26379/mymaster; {ESCAPES}")
    # The credentials are those of the servers; sentinels have separate users.
    own = {name: value for name, value in options.items() if name not in ("username", "password")} | of_sentinels
    sentinel = Sentinel(list(hosts), sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(unquote(service), db=database, **options)
    return master


def _wrong(scheme: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"store address: {scheme}://…: {what}")


def _hosts(place: str, port: int, wrong: Wrong) -> Hosts:
    hosts = []
    for part in place.split(","):
        found = _HOST.fullmatch(part)
        if found is None or not 0 < int(found[3] or port) < 65_536:
            raise wrong(f"expected host:port, with a port from 1 to 65535; {ESCAPES}")
        hosts.append((found[1] or found[2], int(found[3] or port)))
    return tuple(hosts)
