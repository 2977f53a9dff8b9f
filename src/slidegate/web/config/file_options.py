"""Reads a configuration file into the options of `RateLimitMiddleware`.

An option given in code goes before the file, and the file before the environment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp

from ...core.bans.policy import BanPolicy
from ...core.errors import ConfigurationError
from ...core.limits import AnyLimit, Quota, parse_limits
from ...limiter import FailurePolicy, Limiter, check_failure_policy
from ..checks import checked_codes
from ..file_watcher import FileVersion, version_of
from ..keys import key as keys
from ..keys.client_ip import ClientAddress, client_ip
from ..keys.path_param import path_param
from ..keys.user import user
from ..matching import compile_pattern
from ..network_files import AddressList, NetworkFile, NetworkFiles, Networks, check_breadth
from ..overload import LoadSheddingMiddleware
from ..rules.rule import Exceeded, Rule
from ..websockets.message_limits import MessageKey, MessageLimits
from .document import Document

if TYPE_CHECKING:
    from . import schema

STORE_VARIABLE: Final = "SLIDEGATE_STORE"
"""The address of the store where neither code nor file names one."""

_WORDS: Final[dict[str, keys.Key]] = {"everyone": keys.everyone, "user": user}


class Reading:
    """One reading of a configuration file.

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
        versions: Every file that was read, with its version from before it was read; complete after an error too. Lists
            that were read follow their files by themselves, and are not among them.
    """

    def __init__(
        self,
        path: Path,
        code: Mapping[str, Any],
        limiter_at: Callable[[str, FailurePolicy], Limiter],
        on_exceeded: Exceeded | None = None,
        clock: Callable[[], float] = time.monotonic,
        replace_store: bool = False,
        filled: Container[Path] = (),
    ) -> None:
        self.versions: dict[Path, FileVersion | None] = {path: version_of(path)}
        self._document = Document(path)
        self._code = code
        self._limiter_at = limiter_at
        self._on_exceeded = on_exceeded
        self._clock = clock
        self._replace_store = replace_store
        self._filled = filled
        self._load_shedding: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for `RateLimitMiddleware`, those given in code among them.

        Raises:
            ConfigurationError: The file or something in it cannot be used.
        """
        found = self._validated()
        at = self._document.at
        options: dict[str, Any] = {"enabled": found.enabled, "statistics": found.statistics}
        options["headers"] = None if found.headers == "none" else found.headers
        if found.default_limits is not None:
            with at("default_limits"):
                options["default_limits"] = parse_limits(_limits(found.default_limits))
        with at("ignore_checks"):
            options["ignore_checks"] = checked_codes(found.ignore_checks)
        with at("client"):
            client = self._code.get("client") or self._client(found.client)
        options["client"] = client
        options["messages"] = self._messages(found, client)
        if found.load_shedding is not None:
            self._load_shedding = found.load_shedding.model_dump(exclude_unset=True)
        options["bans"] = self._bans(found, client)
        if "limits" not in self._code and "rules" not in self._code:
            options["rules"] = self._rules(found, client)
        for name in ("blocklist", "allowlist"):
            entries = getattr(found, name)
            if entries is not None:
                with at(name):
                    options[name] = self._list(name, entries)
        if "limiter" not in self._code:
            options["limiter"] = self._limiter(found)
        elif not self._replace_store:
            for name in ("store", "deadline", "on_error"):
                if name in found.model_fields_set:
                    text = f"the limiter that the code gives has its own; leave out {name} here, or limiter= in code"
                    raise self._document.error((name,), text)
        return options | dict(self._code)

    def entry(self, gate: ASGIApp, options: Mapping[str, Any]) -> ASGIApp:
        """Return where requests enter: the middleware that sheds load before the gate, if the file has one.

        Raises:
            ConfigurationError: Its options cannot be used.
        """
        if self._load_shedding is None:
            return gate
        given = {name: options[name] for name in ("limiter", "statistics", "enabled")}
        with self._document.at("load_shedding"):
            return LoadSheddingMiddleware(gate, **given, **self._load_shedding)

    def _validated(self) -> schema.Configuration:
        try:
            from pydantic import ValidationError

            from . import schema
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{self._document.path}: reading a configuration file needs {error.name}; "
                "install it with: pip install 'slidegate[config]'"
            ) from error
        self._document.read()
        try:
            return schema.Configuration.model_validate(self._document.data)
        except ValidationError as error:
            raise self._document.invalid(error) from None

    def _messages(self, found: schema.Configuration, client: ClientAddress) -> MessageLimits | None:
        table = found.messages
        if table is None:
            return None
        at = self._document.at
        with at("messages", "limits"):
            limits = parse_limits(_limits(table.limits))
        with at("messages", "key"):
            key: MessageKey = (
                "connection" if table.key == "connection" else self._key(table.key, None, client) or "client"
            )
        return MessageLimits(limits, key=key, beyond=table.beyond)

    def _rules(self, found: schema.Configuration, client: ClientAddress) -> list[Rule]:
        document = self._document
        if found.limits is not None and found.rules is not None:
            raise document.error(("limits",), "give limits or rules, not both; limits is a rule for all paths")
        if found.rules is None:
            if found.limits is None:
                given = found.bans, found.default_limits, self._code.get("bans"), self._code.get("default_limits")
                if any(given):
                    return []
                raise ConfigurationError(
                    f'{document.path}: expected limits = "100/minute", or rules, or default_limits'
                )
            with document.at("limits"):
                return [Rule("*", _limits(found.limits))]
        rules: list[Rule] = []
        places: dict[str, int] = {}
        for number, table in enumerate(found.rules):
            with document.at("rules", number):
                rule = self._rule(table, client, number)
            first = places.setdefault(rule.identity, number)
            if first != number and rule.counts:
                text = f"counts in the same bucket as rules[{first}]; {_way_out(rules[first], rule)}"
                raise document.error(("rules", number, "path" if rule.name is None else "name"), text)
            rules.append(rule)
        return rules

    def _rule(self, table: schema.RuleTable, client: ClientAddress, number: int) -> Rule:
        options = {name: getattr(table, name) for name in table.model_fields_set}
        if table.limits is not None:
            with self._document.at("rules", number, "limits"):
                options["limits"] = _limits(table.limits)
        if table.count_if is not None:
            options["count_if"] = frozenset(table.count_if).__contains__
        if options.pop("on_exceeded", False):
            if self._on_exceeded is None:
                raise ConfigurationError(
                    "on_exceeded: calls a function; give it in code: from_file(..., on_exceeded=function)"
                )
            options["on_exceeded"] = self._on_exceeded
        if "key" in options:
            with self._document.at("rules", number, "key"):
                options["key"] = self._key(table.key, None, client)
        return Rule(**options)

    def _bans(self, found: schema.Configuration, client: ClientAddress) -> list[BanPolicy] | None:
        return [self._ban_policy(name, table, client) for name, table in found.bans.items()] or None

    def _ban_policy(self, name: str, table: schema.BanTable, client: ClientAddress) -> BanPolicy:
        at = self._document.at
        options = {option: getattr(table, option) for option in table.model_fields_set}
        for signal, weight in options.get("signals", {}).items():
            with at("bans", name, "signals", signal):
                BanPolicy(signals={signal: weight})
                if signal.startswith("/"):
                    compile_pattern(signal)
        if "key" in options:
            with at("bans", name, "key"):
                _check_ban_key(table.key)
                options["key"] = self._key(table.key, None, client)
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
        return client_ip(
            self._networks(table.trusted) if isinstance(table.trusted, str) else table.trusted,
            header=table.header,
            ipv4_prefix=table.ipv4_prefix,
            ipv6_prefix=table.ipv6_prefix,
            trust_all=table.trust_all,
        )

    def _networks(self, entries: str | list[str]) -> Networks:
        """Read networks; a text names a file, relative to the directory of the configuration file."""
        if isinstance(entries, list):
            return Networks(entries)
        path = self._document.path.parent / entries
        version = self.versions[path] = version_of(path)
        if version is not None and not version.size:  # a torn write; all clients would be one, the proxy
            raise ConfigurationError(f"{path}: has zero bytes; for nobody, write a comment: # nobody")
        return Networks.from_file(path)

    def _list(self, name: str, entries: schema.Lists) -> AddressList:
        """Make a blocklist or an allowlist, of networks or of files, relative to the directory of this one."""
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            listed = Networks(entries)
            check_breadth([listed], name)
            return listed
        files = []
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            options = {"path": entry} if isinstance(entry, str) else entry.model_dump(exclude_unset=True)
            path = self._document.path.parent / options.pop("path")
            with self._document.at(name, number) if isinstance(entries, list) else self._document.at(name):
                files.append(NetworkFile(path, **options))
        # As long as a list cannot be read, its file is followed together with the configuration.
        read = self.versions
        versions = {Path(file.path): version_of(Path(file.path)) for file in files}
        self.versions = versions | read
        for path, version in versions.items():
            if path in self._filled and version is not None and not version.size:
                raise ConfigurationError(f"{path}: has zero bytes; for a list of nothing, write a comment: # nothing")
        made = NetworkFiles(files, clock=self._clock)
        self.versions = read
        return made

    def _limiter(self, found: schema.Configuration) -> Limiter:
        with self._document.at("deadline"):
            check_failure_policy(found.deadline, found.on_error)
        policy = found.deadline, found.on_error
        if found.store is None:
            return self._limiter_in(STORE_VARIABLE, policy, "memory://")
        with self._document.at("store"):
            if isinstance(found.store, str):
                return self._limiter_at(found.store, policy)
            return self._limiter_in(found.store.env, policy)

    def _limiter_in(self, variable: str, policy: FailurePolicy, default: str = "") -> Limiter:
        address = os.environ.get(variable) or default
        if not address:
            raise ConfigurationError(f"the environment variable {variable} is not set")
        try:
            return self._limiter_at(address, policy)
        except ConfigurationError as error:
            # An address may hold a password.
            text = str(error).replace(repr(address), "its value")
            raise ConfigurationError(f"the environment variable {variable}: {text}") from None


def _way_out(twin: Rule, rule: Rule) -> str:
    if rule.name is None:
        return "name one of them, or drop it"
    paths = dict.fromkeys(twin.paths + rule.paths)
    written = '"*"' if "*" in paths else json.dumps(list(paths), ensure_ascii=False)
    return f"write one rule with path = {written}, or give one of them another name"


def _check_ban_key(key: schema.Key) -> None:
    """Check that a key tells clients apart, also where a value is missing: a ban must not shut out anybody else."""
    if isinstance(key, str):
        if key == "everyone":
            raise ConfigurationError('"everyone" does not say who it is; use "client" or "user", for example')
        return
    if key.path_param is not None:
        raise ConfigurationError('path_param: does not say who it is; use for example { header = "X-API-Key" }')
    for part in (*(key.combine or ()), key.fallback):
        if part is not None:
            _check_ban_key(part)


def _limits(found: schema.Limits) -> str | AnyLimit | list[str | AnyLimit]:
    """Return limits as code writes them.

    Raises:
        ConfigurationError: A quota cannot be read.
    """
    return [_limit(entry) for entry in found] if isinstance(found, list) else _limit(found)


def _limit(found: str | schema.QuotaTable) -> str | AnyLimit:
    return (
        found if isinstance(found, str) else Quota(found.quota, zone=found.zone, starts=found.starts, name=found.name)
    )
