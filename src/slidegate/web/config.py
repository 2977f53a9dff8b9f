"""`slidegate.toml` read into options of `RateLimitMiddleware`; each error names the file, the key and what to write.

An option given in code goes before the file, and the file before the environment.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp

from ..core.bans.policy import BanPolicy
from ..core.errors import MOST_QUOTED, ConfigurationError, closest
from ..core.limits import AnyLimit, parse_limits
from ..core.logs import escaped
from ..core.quotas import Quota
from ..limiter import FailurePolicy, Limiter, check_failure_policy
from . import keys
from .bans import names_nobody
from .checks import checked_codes
from .client_ip import ClientAddress, client_ip
from .file_watcher import FileVersion, read_whole, version_of
from .keys import path_param, user
from .matching import PathMatcher
from .network_files import AddressList, NetworkFile, NetworkFiles, Networks, check_breadth
from .overload import LoadSheddingMiddleware
from .rule_set import check_apart
from .rules import Exceeded, Rule
from .websockets import MessageKey, MessageLimits

if TYPE_CHECKING:
    from pydantic import ValidationError

    from . import config_schema as schema

STORE_VARIABLE: Final = "SLIDEGATE_STORE"
"""The address of the store where neither code nor file names one."""
MAX_BYTES: Final = 2 << 20
"""The size of a configuration; 20,000 rules are one MiB, and to read it takes a hundred times its size in memory."""
MAX_SHOWN: Final = 200
MAX_ERRORS: Final = 20
"""How many mistakes are said at once."""
MAX_DEPTH: Final = 32
"""The largest number of names in a dotted key: every reader of TOML takes time in proportion to its square."""
_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "float_type": "a number",
    "dict_type": "a table",
    "list_type": "a list",
    "model_type": "a table",
    "too_short": "more entries",
    "<text>": "text",
    "<number>": "a whole number",
    "<list>": "a list",
    "<table>": "a table",
}
_EXAMPLES: Final = {
    "after": '"20/10m"',
    "allowlist": '["192.0.2.0/24"]',
    "allowlist.path": '"office.netset"',
    "bans": '{ scanning = { after = "20/10m" } }',
    "blocklist": '"blocked.netset"',
    "blocklist.path": '"blocked.netset"',
    "client": '{ trusted = ["10.0.0.0/8"] }',
    "count_if": "[401, 403]",
    "deadline": '"50ms"',
    "default_limits": '"60/minute"',
    "duration": '"1h"',
    "env": '"SLIDEGATE_STORE"',
    "factor": "4",
    "forgive": '"24h"',
    "ignore_checks": '["SG103"]',
    "jitter": "0.1",
    "key": '{ header = "X-API-Key" }',
    "limits": '"5/minute; 50/hour"',
    "load_shedding": '{ lag = "50ms" }',
    "load_shedding.exempt": '"/health"',
    "longest": '"7d"',
    "methods": '["GET", "POST"]',
    "most": '"100/minute"',
    "path": '"/items/{id}"',
    "prefix_after": '"4/1h"',
    "rules": '[{ path = "*", limits = "100/minute" }]',
    "signals": '{ refused = 1, "/.env" = "ban" }',
    "store": '"memory://"',
    "trusted": '["10.0.0.0/8"]',
    "wait": '"200ms"',
}
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DEEP: Final = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_WORDS: Final[dict[str, keys.Key]] = {"everyone": keys.everyone, "user": user}


class ConfigFileError(ConfigurationError):
    """An error whose message names its file already."""


class ConfigFile:
    """A configuration file as it was read; makes the errors about it.

    Args:
        path: The file.

    Attributes:
        data: The document, as `tomllib` returns it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {}

    def read(self) -> None:
        """Read and parse the file.

        Raises:
            ConfigurationError: It cannot be read, or is not TOML.
        """
        try:
            content = read_whole(self.path, MAX_BYTES)
        except OSError as error:
            raise ConfigFileError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        except ConfigurationError as error:
            raise ConfigFileError(f"{self.path}: {error}") from None
        self.parse(content)

    def parse(self, content: bytes) -> None:
        """Parse the content of the file.

        Raises:
            ConfigurationError: It is not TOML.
        """
        try:
            text = content.decode("utf-8-sig")
            if _DEEP.search(text):
                raise RecursionError
            self.data = tomllib.loads(text)
        except RecursionError:
            raise ConfigFileError(f"{self.path}: is nested too deeply; a key has at most {MAX_DEPTH} names") from None
        except ValueError as error:  # it is not UTF-8 or not TOML, or a number has more digits than Python reads
            raise ConfigFileError(f"{self.path}: not TOML: {escaped(str(error), MAX_SHOWN)}") from None

    def error(self, path: Sequence[str | int], text: str) -> ConfigurationError:
        """Make an error about a key."""
        return ConfigFileError(f"{self.path}: {_path_text(path)}: {text}")

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Add the file and the path of the value at `path` to a `ConfigurationError` raised inside this block."""
        try:
            yield
        except ConfigFileError:
            raise
        except ConfigurationError as error:
            said, colon, text = str(error).partition(": ")
            name = said.rpartition(" ")[2]  # "rule name" is about the key "name"
            value: Any = self.data
            for part in path:
                value = value[part]
            # A message about an option begins with its name; the option may stand in a table inside this one.
            tables = {(): value, **{(key,): inner for key, inner in value.items()}} if isinstance(value, dict) else {}
            for below, table in tables.items():
                if colon and isinstance(table, dict) and name in table:
                    raise self.error((*path, *below, name), text) from None
            raise self.error(path, text if colon and name == path[-1] else str(error)) from None

    def invalid(self, error: ValidationError) -> ConfigurationError:
        """Make one error of everything that validation found."""
        found = []
        facts = error.errors(include_url=False)
        for fact in facts[:MAX_ERRORS]:
            path, value = _place(self.data, fact["loc"])
            context: Mapping[str, Any] = fact.get("ctx", {})
            if fact["type"] == "unknown_key":
                path = (*path, context["key"])
                text = f"unknown key{closest(context['key'], context['known'])}"
            elif fact["type"] == "missing":
                path = (*path, fact["loc"][-1])
                text = f"missing; expected {_example(path)}"
            else:
                text = _wrong_value(fact["type"], fact["msg"], context, path, value)
            found.append(str(self.error(path, text)))
        more = [f"{self.path}: and {len(facts) - MAX_ERRORS} more"] if len(facts) > MAX_ERRORS else []
        return ConfigFileError("\n".join(found + more))


def _path_text(path: Sequence[str | int]) -> str:
    """Write a path as people do: ``rules[2].limits``, ``signals."/.env"``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_key_text(part)}" for part in path).removeprefix(".")


def _key_text(key: str) -> str:
    shown = escaped(key, MOST_QUOTED)
    return shown if _BARE.fullmatch(shown) else json.dumps(shown, ensure_ascii=False)


def _place(data: Any, location: Sequence[str | int]) -> tuple[tuple[str | int, ...], object]:
    """Return the path of a value, and the value; steps that only the validator knows are left out."""
    path: list[str | int] = []
    for part in location:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            data = data[part]
            path.append(part)
    return tuple(path), data


def _example(path: Sequence[str | int]) -> str:
    names = [part for part in path if isinstance(part, str)]
    # The keys in the table of signals are names that the user chose.
    name = "signals" if "signals" in names[:-1] else names[-1] if names else ""
    example = _EXAMPLES.get(".".join(names[-2:]), _EXAMPLES.get(name))
    return f"for example {name} = {example}" if example else name


def _wrong_value(kind: str, message: str, context: Mapping[str, Any], path: Sequence[str | int], value: object) -> str:
    if kind == "wrong_table":
        return message
    try:
        written = json.dumps(value, default=str)
    except ValueError:
        written = "a number with too many digits"
    written = written if len(written) <= 60 else f"{written[:57]}..."
    if kind == "literal_error":
        near = closest(value, re.findall("'([^']*)'", context["expected"])) if isinstance(value, str) else ""
        return f"expected {context['expected']}, not {written}{near}"
    expected = _KINDS.get(kind) or message.removeprefix("Input should be ")
    if kind == "union_tag_invalid":
        *others, last = (_KINDS[tag] for tag in re.findall("<[a-z]+>", context["expected_tags"]))
        expected = f"{', '.join(others)} or {last}"
    example = _example(path)
    hint = f", {example}" if " = " in example else ""
    return f"expected {expected}{hint}, not {written}"


@dataclass
class ConfigLoader:
    """Reads a configuration file once, into the options of a middleware.

    Args:
        path: The file.
        code: Options given in code; they go before those of the file.
        limiter_at: Makes the limiter for a store's address, given its failure policy.
        on_exceeded: The function that the file's rules with ``on_exceeded = true`` call.
        clock: Returns seconds; measures the time between two looks at the files of lists.
        replace_store: Whether a limiter given in code replaces the file's store, as tools that only look on want it;
            else it is an error beside one.
        filled: The files of lists at work that have entries; one of zero bytes does not take the place of such a list.

    Attributes:
        file: The file.
        versions: Every file that was read, with its version from before it was read; complete after an error too. Lists
            that were read follow their files by themselves, and are not among them.
    """

    path: Path
    code: Mapping[str, Any]
    limiter_at: Callable[[str, FailurePolicy], Limiter]
    on_exceeded: Exceeded | None = None
    clock: Callable[[], float] = time.monotonic
    replace_store: bool = False
    filled: Container[Path] = ()

    def __post_init__(self) -> None:
        self.versions: dict[Path, FileVersion | None] = {self.path: version_of(self.path)}
        self.file = ConfigFile(self.path)
        self._load_shedding: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for `RateLimitMiddleware`, those given in code among them.

        Raises:
            ConfigurationError: The file or something in it cannot be used.
        """
        found = self._validated()
        at = self.file.at
        options: dict[str, Any] = {"enabled": found.enabled, "statistics": found.statistics}
        options["headers"] = None if found.headers == "none" else found.headers
        if found.default_limits is not None:
            with at("default_limits"):
                options["default_limits"] = parse_limits(_limits(found.default_limits))
        with at("ignore_checks"):
            options["ignore_checks"] = checked_codes(found.ignore_checks)
        with at("client"):
            client = options["client"] = self.code.get("client") or self._client(found.client)
        options["messages"] = self._messages(found, client)
        if found.load_shedding is not None:
            self._load_shedding = found.load_shedding.model_dump(exclude_unset=True)
        options["bans"] = [self._ban_policy(name, table, client) for name, table in found.bans.items()] or None
        if "limits" not in self.code and "rules" not in self.code:
            options["rules"] = self._rules(found, client)
        for name in ("blocklist", "allowlist"):
            entries = getattr(found, name)
            if entries is not None:
                with at(name):
                    options[name] = self._list(name, entries)
        if "limiter" not in self.code:
            options["limiter"] = self._limiter(found)
        elif not self.replace_store:
            for name in sorted(found.model_fields_set & {"store", "deadline", "on_error"}):
                text = f"the limiter that the code gives has its own; leave out {name} here, or limiter= in code"
                raise self.file.error((name,), text)
        return options | dict(self.code)

    def blamed(self, error: ConfigurationError) -> ConfigurationError:
        """Return an error of the middleware, with the file where the option that it is about stands there."""
        option, _, text = str(error).partition(": ")
        return self.file.error((option,), text) if option in self.file.data and option not in self.code else error

    def entry(self, middleware: ASGIApp, options: Mapping[str, Any]) -> ASGIApp:
        """Return where requests enter: what sheds load before the middleware, if the file has that.

        Raises:
            ConfigurationError: Its options cannot be used.
        """
        if self._load_shedding is None:
            return middleware
        given = {name: options[name] for name in ("limiter", "statistics", "enabled")}
        with self.file.at("load_shedding"):
            return LoadSheddingMiddleware(middleware, **given, **self._load_shedding)

    def _validated(self) -> schema.Configuration:
        try:
            from pydantic import ValidationError

            from . import config_schema as schema
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{self.file.path}: reading a configuration file needs {error.name}; "
                "install it with: pip install 'slidegate[config]'"
            ) from error
        self.file.read()
        try:
            return schema.Configuration.model_validate(self.file.data)
        except ValidationError as error:
            raise self.file.invalid(error) from None

    def _messages(self, found: schema.Configuration, client: ClientAddress) -> MessageLimits | None:
        table = found.messages
        if table is None:
            return None
        with self.file.at("messages", "limits"):
            limits = parse_limits(_limits(table.limits))
        with self.file.at("messages", "key"):
            own = table.key == "connection"
            key: MessageKey = "connection" if own else self._key(table.key, None, client) or "client"
        return MessageLimits(limits, key=key, beyond=table.beyond)

    def _rules(self, found: schema.Configuration, client: ClientAddress) -> list[Rule]:
        if found.limits is not None and found.rules is not None:
            raise self.file.error(("limits",), "give limits or rules, not both; limits is a rule for all paths")
        if found.limits is not None:
            with self.file.at("limits"):
                return [Rule("*", _limits(found.limits))]
        others = found.bans, found.default_limits, self.code.get("bans"), self.code.get("default_limits")
        if found.rules is None and not any(others):
            raise ConfigurationError(f'{self.file.path}: expected limits = "100/minute", or rules, or default_limits')
        rules = [self._rule(table, client, number) for number, table in enumerate(found.rules or ())]
        with self.file.at("rules"):
            check_apart(rules)
        return rules

    def _rule(self, table: schema.RuleTable, client: ClientAddress, number: int) -> Rule:
        options = {name: getattr(table, name) for name in table.model_fields_set}
        if table.limits is not None:
            with self.file.at("rules", number, "limits"):
                options["limits"] = _limits(table.limits)
        if table.count_if is not None:
            options["count_if"] = frozenset(table.count_if).__contains__
        if options.pop("on_exceeded", False):
            options["on_exceeded"] = self.on_exceeded
            if self.on_exceeded is None:
                text = "calls a function; give it in code: from_file(..., on_exceeded=function)"
                raise self.file.error(("rules", number, "on_exceeded"), text)
        if "key" in options:
            with self.file.at("rules", number, "key"):
                options["key"] = self._key(table.key, None, client)
        with self.file.at("rules", number):
            return Rule(**options)

    def _ban_policy(self, name: str, table: schema.BanTable, client: ClientAddress) -> BanPolicy:
        at = self.file.at
        options = {option: getattr(table, option) for option in table.model_fields_set}
        for signal, weight in options.get("signals", {}).items():
            with at("bans", name, "signals", signal):
                BanPolicy(signals={signal: weight})
                if signal.startswith("/"):
                    PathMatcher(signal)
        if "key" in options:
            with at("bans", name, "key"):
                options["key"] = self._key(table.key, None, client)
                if names_nobody(options["key"]):
                    raise ConfigurationError('does not say who it is; use for example { header = "X-API-Key" }')
        with at("bans", name):
            return BanPolicy(name=name, **options)

    def _key(self, key: schema.MessageKey, clients: keys.Key | None, client: ClientAddress) -> keys.Key | None:
        """Make a key; the word "client" becomes `clients`."""
        if isinstance(key, str):
            return _WORDS.get(key, clients)
        if key.client is not None:
            return self._client(key.client)
        if key.combine is not None:
            return keys.combine(*filter(None, (self._key(part, client, client) for part in key.combine)))
        fallback = None if key.fallback is None else self._key(key.fallback, None, client)
        sources = keys.header, keys.cookie, keys.query, path_param
        source = next(source for source in sources if getattr(key, source.__name__) is not None)
        return source(getattr(key, source.__name__), fallback=fallback)

    def _client(self, table: schema.Client) -> ClientAddress:
        trusted = self._networks(table.trusted) if isinstance(table.trusted, str) else table.trusted
        return client_ip(trusted, **table.model_dump(exclude={"trusted"}))

    def _networks(self, name: str) -> Networks:
        """Read a file of networks, relative to the directory of the configuration file."""
        path = self.file.path.parent / name
        version = self.versions[path] = version_of(path)
        if version is not None and not version.size:  # a torn write; all clients would be one, the proxy
            raise ConfigurationError(f"{path}: has zero bytes; for nobody, write a comment: # nobody")
        return Networks.from_file(path)

    def _list(self, name: str, entries: schema.Lists) -> AddressList:
        """Make a blocklist or an allowlist, of networks or of files, relative to the directory of this one."""
        tables = entries if isinstance(entries, list) else [entries]
        networks = [entry for entry in tables if isinstance(entry, str)] if tables is entries else []
        if len(networks) == len(tables):
            listed = Networks(networks)
            check_breadth([listed], name)
            return listed
        if networks:
            raise ConfigurationError("expected networks or tables, not both")
        files = []
        for number, table in enumerate(tables):
            options = {"path": table} if isinstance(table, str) else table.model_dump(exclude_unset=True)
            path = self.file.path.parent / options.pop("path")
            with self.file.at(name, number) if tables is entries else self.file.at(name):
                files.append(NetworkFile(path, **options))
        # As long as a list cannot be read, its file is followed together with the configuration.
        read = self.versions
        versions = {Path(file.path): version_of(Path(file.path)) for file in files}
        self.versions = versions | read
        for path, version in versions.items():
            if path in self.filled and version is not None and not version.size:
                raise ConfigurationError(f"{path}: has zero bytes; for a list of nothing, write a comment: # nothing")
        made = NetworkFiles(files, clock=self.clock)
        self.versions = read
        return made

    def _limiter(self, found: schema.Configuration) -> Limiter:
        with self.file.at("deadline"):
            check_failure_policy(found.deadline, found.on_error)
        policy = found.deadline, found.on_error
        if found.store is None:
            return self._limiter_in(STORE_VARIABLE, policy, "memory://")
        with self.file.at("store"):
            if isinstance(found.store, str):
                return self.limiter_at(found.store, policy)
            return self._limiter_in(found.store.env, policy)

    def _limiter_in(self, variable: str, policy: FailurePolicy, default: str = "") -> Limiter:
        address = os.environ.get(variable) or default
        if not address:
            raise ConfigurationError(f"the environment variable {variable} is not set")
        try:
            return self.limiter_at(address, policy)
        except ConfigurationError as error:
            # An address may hold a password.
            text = str(error).replace(repr(address), "its value")
            raise ConfigurationError(f"the environment variable {variable}: {text}") from None


def _limits(found: schema.Limits) -> str | AnyLimit | list[str | AnyLimit]:
    """Return limits as code writes them.

    Raises:
        ConfigurationError: A quota cannot be read.
    """
    return [_limit(entry) for entry in found] if isinstance(found, list) else _limit(found)


def _limit(found: str | schema.QuotaTable) -> str | AnyLimit:
    if isinstance(found, str):
        return found
    return Quota(found.quota, zone=found.zone, starts=found.starts, name=found.name)
