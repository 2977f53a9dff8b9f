"""Reads `slidegate.toml` into options of `RateLimitMiddleware`. Each error names the file, the table and its key.

A table is the keyword arguments of the class or function that it describes, which checks them as it does in code. What
TOML has no type for is written differently: keys and conditions, statuses, quotas, and files of networks. The store
of the file overrides that of the environment.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, TypeVar

from .._watcher import FileVersion, FollowedFile, read_whole, version_of
from ..core.addresses import network_of
from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import escaped
from ..core.options import checked_value, misplaced_option
from ..core.passwords import without_passwords
from ..core.quotas import Quota
from ..limiter import Limiter
from ..limiter.keys import SECRET_VARIABLE
from ..networks.lists import ListFile, Networks
from ..networks.mcp import mcp_tool
from ..networks.operators import Network, NetworkFile
from ..web import keys
from ..web.client_ip import ClientAddress, client_ip
from ..web.rules import Rule
from ..web.websockets import MessageLimits

T = TypeVar("T")
_File = TypeVar("_File", bound=FollowedFile)

STORE_VARIABLE: Final = "SLIDEGATE_STORE"
"""The environment variable with the address of the store, used if the file does not specify one."""
MAX_BYTES: Final = 2 << 20
"""The maximum size of a file. 20,000 rules are one MiB, and reading takes a hundred times the size in memory."""
MAX_SHOWN: Final = 200
OF_LIMITER: Final[Mapping[str, Any]] = {"store": None, "deadline": "50ms", "on_error": "local", "networks": []}
"""The options of the limiter, with their defaults."""
OPTIONS: Final = (
    *("client", "limits", "rules", "default_limits", "key", "blocklist", "allowlist", "bans", "headers"),
    *("messages", "enabled", "name", *OF_LIMITER),
)
"""The keys at the top of a file, in the order of reading: options of `RateLimitMiddleware` and of its `Limiter`."""
OF_FUNCTIONS: Final = ("cost_max", "fallback_limits")
"""The options of a rule that belong to functions, which a file has not."""
_LIMITING: Final = frozenset({"limits", "rules", "default_limits", "bans", "blocklist", "messages"})
_TABLES: Final[Mapping[str, Collection[str]]] = {
    "the top of the file": OPTIONS,
    "[[rules]]": signature(Rule).parameters.keys() - OF_FUNCTIONS,
    "[bans.NAME]": signature(BanPolicy).parameters,
    "[client]": signature(client_ip).parameters,
    "[messages]": signature(MessageLimits).parameters,
}
"""Where a key can stand."""
_WORDS: Final[Mapping[str, keys.Key | None]] = {"client": None, "everyone": keys.everyone, "user": keys.user}
MAKERS: Final[Mapping[str, Callable[..., keys.Key]]] = {
    **keys.SENT_BY_NAME,
    "path_param": keys.path_param,
    "client": lambda client: client,
    "combine": lambda parts: keys.combine(*parts),
    "mcp_tool": lambda tools, validated=False: mcp_tool(*tools, validated=validated),
    "network": Network,
}
"""What the table of a key can name, each with what makes the key; its other arguments may stand beside it."""
_MMDB: Final = 'for example "GeoLite2-ASN.mmdb"'
_NETSET: Final = 'networks, or a file such as "blocked.netset"'
_PARTS: Final = 'a list of keys such as ["client", { header = "X-Tenant" }]'
_KEY: Final = 'expected "client", "everyone", "user", or a table such as { header = "X-API-Key" }'


@contextmanager
def about(place: str) -> Iterator[None]:
    """Put a key, or the number of a table, in front of the errors that are raised inside: ``rules: 2: limits: ...``."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(str(error), place) from error.__cause__


class ConfigReader:
    """Reads a configuration file once, and creates what it describes.

    Args:
        code: The options given in code.

    Attributes:
        of_limiter: The options of the limiter as they are written in the file, or their defaults.
        unread: The file that it names and that could not be read, with its version before; empty for none.
    """

    def __init__(self, path: Path, code: Collection[str]) -> None:
        self._path = path
        self._code = code
        self._client: ClientAddress = client_ip()
        self._has_key = False
        self._opened: dict[str, NetworkFile] = {}
        self._readers: Mapping[Any, Callable[[Any], Any]] = {
            **dict.fromkeys(("limits", "default_limits"), self._limits),
            "blocklist": lambda value: self._list(value, "blocklist"),
            "allowlist": lambda value: self._list(value, "allowlist"),
            "key": self._key,
            "client": lambda table: self._from_table(client_ip, table),
            "trusted": self._trusted,
            "rules": self._rules,
            "bans": self._policies,
            "messages": lambda table: self._from_table(MessageLimits, table),
            "headers": lambda style: None if style == "none" else style,
            "networks": _file_names,
            "network": self._network_file,
            "combine": lambda parts: [self._key_or_client(part) for part in _listed(parts, _PARTS)],
            "mcp_tool": lambda tools: _listed(tools, 'a list of tools such as ["search"]'),
            "fair": self._key_or_client,
            "when": self._condition,
            "is_in": lambda values: _listed(values, 'a list such as ["NL"]'),
            (BanPolicy, "exempt"): lambda value: self._list(value, "exempt"),
        }
        self.unread: tuple[str, FileVersion | None] = "", None

    def options(self) -> dict[str, Any]:
        """Return the options for `RateLimitMiddleware` but those given in code.

        Raises:
            ConfigurationError: The file cannot be read, a key is unknown, or a value is invalid.
        """
        try:
            return self._options(_parsed(read_whole(str(self._path), MAX_BYTES)))
        except RecursionError:
            raise ConfigurationError("is nested too deeply", str(self._path)) from None
        except ConfigurationError as error:
            raise self.located(error) from error.__cause__

    def located(self, error: ConfigurationError) -> ConfigurationError:
        """Return an error with the file in front, unless it names the file or an option that was given in code."""
        is_clear = error.option in self._code or str(error).startswith(
            f"cannot read {without_passwords(str(self._path))}: "
        )
        if is_clear:
            return ConfigurationError(str(error))
        return ConfigurationError(f"{self._path}: {error}")

    def texts(self) -> set[str]:
        """Return what a valid file says, value by value: ``default_limits 20/m``, ``rules {'path': '/login', ...}``."""
        texts = set[str]()
        for name, value in self._written.items():
            values = value if isinstance(value, list) else [value]
            texts.update(f"{name} {one}" for one in values)
        return texts

    def limiter(self, address: str) -> Limiter:
        """Return the limiter that the file describes; call `options` before.

        Args:
            address: The address of a store that replaces the file's; empty for none.

        Raises:
            ConfigurationError: A value is invalid.
        """
        options = self.of_limiter.copy()
        store, names, where = options.pop("store"), options.pop("networks"), "store"
        if store is None and STORE_VARIABLE in os.environ:
            store, where = os.environ[STORE_VARIABLE] or None, f"the environment variable {STORE_VARIABLE}"
        url = address or store
        if not address and store is None:
            url = "memory://"
        try:
            with about("networks"):
                networks = [Network(self._network_file(name)) for name in names]
            return Limiter.from_url(url, networks=networks, **options)
        except ConfigurationError as error:
            if error.option in (*OF_LIMITER, SECRET_VARIABLE) or address:
                raise self.located(error) from error.__cause__
            raise self.located(ConfigurationError(str(error), where)) from None

    # -- the tables ----------------------------------------------------------------------------------------------------

    def _options(self, data: dict[str, Any]) -> dict[str, Any]:
        for name in data:
            if name not in OPTIONS:
                raise ConfigurationError(misplaced_option(name, OPTIONS, _TABLES))
            if name in OF_LIMITER and "limiter" in self._code:
                raise ConfigurationError(
                    f"the limiter given in code has its own; remove {name}, or limiter= in code", name
                )
        if not _LIMITING & data.keys():
            raise ConfigurationError('expected limits = "100/minute", or rules, or default_limits')
        options: dict[str, Any] = {}
        self._written = data
        self._has_key = "key" in data
        for name in OPTIONS:  # in this order, as later ones need the client
            if name in data:
                options[name] = self._read(name, data[name])
            if name == "client" and name in data:
                self._client = options[name]
        self.of_limiter = {name: options.pop(name, default) for name, default in OF_LIMITER.items()}
        return options

    def _read(self, name: str, value: Any, call: object = None) -> Any:
        """Return an argument from the value of a key, which is written alike in every table that has no own way."""
        reader = self._readers.get((call, name)) or self._readers.get(name)
        if reader is None:
            return checked_value(name, value)
        with about(name):
            return reader(value)

    def _from_table(self, call: Callable[..., T], table: object, first: str = "", **fixed: Any) -> T:
        """Call a class or function with the keys of a table as its arguments, and with some that are fixed.

        The key `first`, if there is one, is its first argument, whatever that is called.
        """
        if not isinstance(table, dict):
            raise ConfigurationError(f"expected a table, not {quoted(table)}")
        parameters = {**signature(call).parameters}
        for name in (*OF_FUNCTIONS, *fixed):
            parameters.pop(name, None)
        names = [*parameters]
        if first:
            names[0] = first
        for name in table:
            if name not in names:
                raise ConfigurationError(misplaced_option(name, names, _TABLES))
        options = {name: self._read(name, value, call) for name, value in table.items()}
        for name, parameter in zip(names, parameters.values(), strict=True):
            if parameter.default is Parameter.empty and name not in options:
                raise ConfigurationError("is missing", name)
        if first:
            return call(options.pop(first), **options, **fixed)
        return call(**options, **fixed)

    def _rules(self, tables: object) -> list[Rule]:
        listed = _listed(tables, "tables [[rules]]")
        rules: list[Rule] = []
        for number, table in enumerate(listed, start=1):
            with about(str(number)):
                rule = self._from_table(Rule, table)
            if "key" in table and self._has_key:  # "client" is no key, but here it has to replace the file's
                rule = rule.keyed(self._client)
            rules.append(rule)
        return rules

    def _policies(self, tables: object) -> list[BanPolicy]:
        if not isinstance(tables, dict):
            raise ConfigurationError(f"expected tables such as [bans.scanning], not {quoted(tables)}")
        policies: list[BanPolicy] = []
        for name, table in tables.items():
            with about(escaped(name, MAX_SHOWN)):
                policies.append(self._from_table(BanPolicy, table, name=name))
        return policies

    def _limits(self, value: Any) -> Any:
        """Return limits as code has them: a table is a quota."""
        if isinstance(value, dict):
            return self._from_table(Quota, value, "quota")
        if isinstance(value, list):
            return [self._limits(item) for item in value]
        return value

    # -- keys and conditions -------------------------------------------------------------------------------------------

    def _key(self, value: Any) -> keys.Key | None:
        """Return the key that a word or a table names; None for the client."""
        if isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
        if not isinstance(value, dict):
            raise ConfigurationError(f"{_KEY}, not {quoted(value)}{closest(value, _WORDS)}")
        kinds = [name for name in value if name in MAKERS]
        if len(kinds) != 1:
            raise ConfigurationError(f"expected one of {', '.join(MAKERS)}, not {quoted(value)}")
        return self._from_table(MAKERS[kinds[0]], value, kinds[0])

    def _key_or_client(self, value: Any) -> keys.Key:
        return self._key(value) or self._client

    def _condition(self, value: Any) -> keys.KeyCondition:
        """Return the condition of a rule: is_in of mcp_tool or network."""
        table: dict[str, Any] = {}
        if isinstance(value, dict):
            table.update(value)
        values = table.pop("is_in", None)
        key: Any = None
        if table and values is not None:
            key = self._key(table)
        if not hasattr(key, "is_in"):
            expected = 'mcp_tool or network with is_in, for example { network = "x.mmdb", is_in = ["NL"] }'
            raise ConfigurationError(f"expected {expected}, not {quoted(value)}")
        condition: keys.KeyCondition = key.is_in(*self._read("is_in", values))
        return condition

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open(self, kind: Callable[[str], _File], path: object, expected: str) -> _File:
        """Open a file beside the configuration."""
        if not isinstance(path, str) or not os.path.basename(path):
            raise ConfigurationError(f"expected {expected}, not {quoted(path)}")
        name = str(self._path.parent / path)
        version = version_of(name)
        try:
            return kind(name)
        except ConfigurationError as error:  # the name of the file is the whole value, without a table
            self.unread = name, version
            raise ConfigurationError(error.text) from error.__cause__

    def _trusted(self, value: object) -> object:
        """Return trusted proxies as code has them: the name of a file stands for its networks."""
        if isinstance(value, str):
            return self._list(value)
        return value

    def _list(self, value: object, role: str = "") -> Networks:
        """Return networks that are written in the configuration, or those of a file.

        Args:
            value: The networks; the name of a file; or a table of the arguments of `Networks.from_file`.
            role: What they are for, if they are a blocklist or an allowlist.
        """
        if isinstance(value, list):
            return Networks(value)
        if isinstance(value, dict) and role:
            return self._from_table(self._list_file, value, role=role)
        if isinstance(value, str) and network_of(value) is not None:
            raise ConfigurationError(f"expected a list such as [{json.dumps(value)}], or a file, not {quoted(value)}")
        return self._list_file(value, role=role)

    def _list_file(
        self, path: object, *, wide: bool = False, private: bool = False, service: str | None = None, role: str
    ) -> Networks:
        """Return the networks of a file beside the configuration."""
        kind = partial(ListFile, wide=wide, private=private, service=service, role=role)
        return self._open(kind, path, _NETSET).networks

    def _network_file(self, path: object) -> NetworkFile:
        """Open a file in MaxMind's format, once for all keys."""
        name = str(path)
        if name not in self._opened:
            self._opened[name] = self._open(NetworkFile, path, f"a file, {_MMDB}")
        return self._opened[name]


def _listed(value: object, expected: str) -> list[Any]:
    """Return a value that is a list; text would be taken for a list of letters."""
    if not isinstance(value, list):
        raise ConfigurationError(f"expected {expected}, not {quoted(value)}")
    return value


def _file_names(names: object) -> list[Any]:
    """Return the names of files; one may stand without a list."""
    if isinstance(names, str):
        return [names]
    return _listed(names, f"files, {_MMDB}")


def _parsed(content: bytes) -> dict[str, Any]:
    """Return the document in the content of a file.

    Raises:
        ConfigurationError: It is not TOML.
        RecursionError: It is nested too deeply.
    """
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except ValueError as error:  # not UTF-8, not TOML, or a number with more digits than Python parses
        raise ConfigurationError(f"not TOML: {escaped(str(error), MAX_SHOWN)}") from None
