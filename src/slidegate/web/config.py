"""Reads `slidegate.toml` into options of `RateLimitMiddleware`. Each error names the file, the key and what to write.

Code overrides the file, and the file overrides the environment. `config_schema` defines the keys and their values.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..core.bans.policy import BanPolicy
from ..core.errors import MAX_QUOTED, ConfigurationError, closest, quoted
from ..core.logs import escaped
from ..limiter import FailurePolicy, Limiter, check_failure_policy
from ..limiter.keys import SECRET_VARIABLE
from .bans import check_policy
from .client_ip import ClientAddress, client_ip
from .file_watcher import FileVersion, read_whole, version_of
from .lists import ListFile, Networks
from .networks import NetworkFile

if TYPE_CHECKING:
    from pydantic import ValidationError

    from . import config_schema as schema

STORE_VARIABLE: Final = "SLIDEGATE_STORE"
"""The environment variable with the address of the store, used if neither code nor file specify one."""
MAX_BYTES: Final = 2 << 20
"""The maximum size of a file. 20,000 rules are one MiB, and reading takes a hundred times the size in memory."""
MAX_SHOWN: Final = 200
MAX_ERRORS: Final = 20
"""The most mistakes that one error lists."""
MAX_DEPTH: Final = 32
"""The most names in a dotted key: TOML parsers need quadratic time for them."""
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DEEP: Final = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
_OF_LIMITER: Final = frozenset({"store", "deadline", "on_error", "networks"})
_BESIDE_STORE: Final = frozenset({*_OF_LIMITER, SECRET_VARIABLE} - {"store"})
"""What a limiter is made of in addition to a store."""
_LIMITING: Final = frozenset({"limits", "rules", "default_limits", "bans"})


class ConfigFile:
    """A parsed configuration file; creates the errors about it.

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
            raise self.error((), f"cannot be read: {error.strerror or error}") from error
        except ConfigurationError as error:
            raise self.error((), str(error)) from None
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
            raise self.error((), f"is nested too deeply; a key has at most {MAX_DEPTH} names") from None
        except ValueError as error:  # not UTF-8, not TOML, or a number with more digits than Python parses
            raise self.error((), f"not TOML: {escaped(str(error), MAX_SHOWN)}") from None

    def error(self, path: Sequence[str | int], text: str) -> ConfigurationError:
        """Return an error about the key at a path; about the file if the path is empty."""
        return ConfigurationError(": ".join(filter(None, (str(self.path), _path_text(path), text))))

    def blamed(self, error: ConfigurationError, path: Sequence[str | int]) -> ConfigurationError:
        """Return an error raised by an object built from the value at a path, with the path of the key to blame."""
        _, value = self._place(path)
        if not isinstance(value, dict):
            return self.error(path, error.text)
        if error.option in value:
            return self.error((*path, error.option), error.text)
        return self.error(path, str(error))

    def invalid(self, error: ValidationError) -> ConfigurationError:
        """Return one error for everything that validation found."""
        facts: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
        for fact in error.errors(include_url=False):
            path, _ = self._place(fact["loc"])
            facts.setdefault((*path, fact["loc"][-1]) if fact["type"] == "missing" else path, []).append(fact)
        # A value that may have several forms has an error for each; errors inside one form are the specific ones.
        outer = {path[:end] for path in facts for end in range(len(path))}
        wrong = [path for path in facts if path not in outer]
        found = [str(self._mistake(path, facts[path])) for path in wrong[:MAX_ERRORS]]
        more = [f"{self.path}: and {len(wrong) - MAX_ERRORS} more"] if len(wrong) > MAX_ERRORS else []
        return ConfigurationError("\n".join(found + more))

    def _mistake(self, path: tuple[str | int, ...], facts: Sequence[Mapping[str, Any]]) -> ConfigurationError:
        """Return the error about one value: that of the object built from it, else that of the validation."""
        causes = [fact.get("ctx", {}).get("error") for fact in facts]
        ours = next((cause for cause in causes if isinstance(cause, ConfigurationError)), None)
        if ours is not None:
            return self.blamed(ours, path)
        said = "; ".join(dict.fromkeys(fact["msg"] for fact in facts))
        if facts[0]["type"] == "extra_forbidden":
            return self.error(path, said + closest(str(path[-1]), _known_keys()))
        if all(fact["msg"].startswith("Input should") for fact in facts):
            said = f"{said}, not {quoted(facts[0]['input'])}"
        return self.error(path, said)

    def _place(self, location: Sequence[str | int]) -> tuple[tuple[str | int, ...], object]:
        """Return the path of a value, and the value; path components that only pydantic uses are skipped."""
        path: list[str | int] = []
        data: Any = self.data
        for part in location:
            if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
                data = data[part]
                path.append(part)
        return tuple(path), data


def _path_text(path: Sequence[str | int]) -> str:
    """Format a path in TOML style: ``rules[2].limits``, ``signals."/.env"``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_key_text(part)}" for part in path]
    return "".join(parts if len(parts) <= MAX_DEPTH else [*parts[:3], " ... ", *parts[-3:]]).removeprefix(".")


def _key_text(key: str) -> str:
    shown = escaped(key, MAX_QUOTED)
    return shown if _BARE.fullmatch(shown) else json.dumps(shown, ensure_ascii=False)


def _known_keys() -> set[str]:
    """Return the keys of all tables."""
    from .config_schema import json_schema

    schema = json_schema()
    return {key for table in (schema, *schema["$defs"].values()) for key in table["properties"]}


@dataclass
class ConfigLoader:
    """Reads a configuration file once, into the options of a middleware.

    Args:
        path: The file.
        code: Options given in code, which override those of the file.
        limiter_at: Creates the limiter from a store's address, a failure policy, and the files for its `networks`.
        clock: Returns the time in seconds, for the interval between two checks of list files.
        store: The address of a store that replaces the file's, for read-only tools.
        filled: The paths of active list files with entries; a file of zero bytes does not replace such a list.
        opened: The open files in MaxMind's format, by path; they are not opened a second time.

    Attributes:
        file: The file.
        network_files: The files in MaxMind's format that the configuration names, by path.
        client: Determines clients; keys may combine it with others.
        versions: The version of each file, taken before it was read; complete even after an error. Lists that were read
            successfully watch their own files and are not included.
    """

    path: Path
    code: Mapping[str, Any]
    limiter_at: Callable[[str, FailurePolicy, Sequence[NetworkFile]], Limiter]
    clock: Callable[[], float] = time.monotonic
    store: str = ""
    filled: Container[str] = ()
    opened: Mapping[str, NetworkFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network_files: dict[str, NetworkFile] = {}
        self.versions: dict[str, FileVersion | None] = {str(self.path): version_of(str(self.path))}
        self.file = ConfigFile(self.path)
        self.client: ClientAddress = self.code.get("client") or client_ip()

    def options(self) -> dict[str, Any]:
        """Return the options for `RateLimitMiddleware`, including those given in code.

        Raises:
            ConfigurationError: The file or a value in it is invalid.
        """
        found = self._validated()
        options = {name: value for name, value in found.given.items() if name not in _OF_LIMITER}
        if not _LIMITING & {*options, *self.code}:
            raise self.file.error((), 'expected limits = "100/minute", or rules, or default_limits')
        if {"limits", "rules"} <= options.keys():
            raise self.file.error(("limits",), "give limits or rules, not both; limits is one rule for all paths")
        if {"limits", "rules"} & self.code.keys():
            options = {name: value for name, value in options.items() if name not in ("limits", "rules")}
        if found.headers == "none":
            options["headers"] = None
        if "bans" in options:
            options["bans"] = [self._policy(name, table) for name, table in options["bans"].items()]
        if "limiter" not in self.code:
            options["limiter"] = self._limiter(found)
        else:
            for name in sorted(_OF_LIMITER & found.given.keys()):
                text = f"the limiter given in code has its own; remove {name} here, or limiter= in code"
                raise self.file.error((name,), text)
        return options | dict(self.code)

    def blamed(self, error: ConfigurationError) -> ConfigurationError:
        """Return an error of the middleware, prefixed with the file if the option was set there."""
        return self.file.blamed(error, ()) if error.option in self.file.data.keys() - self.code.keys() else error

    def beside(self, name: str) -> str:
        """Return the path of a file that the configuration names, relative to its own directory."""
        return str(self.path.parent / name)

    def networks(self, name: str) -> Networks:
        """Read a file of networks; when it changes, the whole configuration is reloaded."""
        path = self.beside(name)
        version = self.versions[path] = version_of(path)
        if version is not None and not version.size:  # a torn write: without proxies, all clients would count as one
            raise ConfigurationError(
                f"{path}: has zero bytes; to trust no proxy, write a comment such as: # none", "trusted"
            )
        try:
            return Networks.from_file(path)
        except ConfigurationError as error:
            raise ConfigurationError(error.text, "trusted") from None

    def follow(self, files: Sequence[ListFile]) -> Networks:
        """Read the files of a list; the returned list watches them itself."""
        # If a list cannot be read, a change of its file reloads the whole configuration.
        read = self.versions
        versions = {file.path: version_of(file.path) for file in files}
        self.versions = versions | read
        for path, version in versions.items():
            if path in self.filled and version is not None and not version.size:
                raise ConfigurationError(f"{path}: has zero bytes; to empty the list, write a comment such as: # empty")
        made = Networks.of_files(files, self.clock)
        self.versions = read
        return made

    def network_file(self, name: str) -> NetworkFile:
        """Open a file in MaxMind's format, once for all keys; the returned object watches the file itself."""
        path = self.beside(name)
        found = self.network_files.get(path) or self.opened.get(path)
        if found is None:
            # If it cannot be read, a change of it reloads the whole configuration.
            self.versions[path] = version_of(path)
            found = NetworkFile(path, self.clock)
            del self.versions[path]
        self.network_files[path] = found
        return found

    def _validated(self) -> schema.Configuration:
        try:
            from pydantic import ValidationError

            from . import config_schema as schema
        except ModuleNotFoundError as error:
            raise self.file.error(
                (),
                f"reading a configuration file needs {error.name}; install it with: pip install 'slidegate[config]'",
            ) from error
        self.file.read()
        try:
            return schema.Configuration.model_validate(self.file.data, context=self)
        except ValidationError as error:
            raise self.file.invalid(error) from None

    def _policy(self, name: str, options: Mapping[str, Any]) -> BanPolicy:
        try:
            policy = BanPolicy(name=name, **options)
            check_policy(policy)
        except ConfigurationError as error:
            raise self.file.blamed(error, ("bans", name)) from None
        return policy

    def _limiter(self, found: schema.Configuration) -> Limiter:
        try:
            check_failure_policy(found.deadline, found.on_error)
        except ConfigurationError as error:
            raise self.file.blamed(error, ()) from None
        policy, networks = (found.deadline, found.on_error), found.given.get("networks", [])
        if self.store:
            return self.limiter_at(self.store, policy, networks)
        variable = STORE_VARIABLE if found.store is None else getattr(found.store, "env", "")
        address = os.environ.get(variable, "") if variable else str(found.store)
        if found.store is None:
            address = address or "memory://"
        elif variable and not address:
            raise self.file.error(("store",), f"the environment variable {variable} is not set")
        try:
            return self.limiter_at(address, policy, networks)
        except ConfigurationError as error:
            if error.option in _BESIDE_STORE:
                raise self.file.blamed(error, ()) from None
            if variable:  # the value may contain a password
                text = str(error).replace(repr(address), "its value")
                raise self.file.error((), f"the environment variable {variable}: {text}") from None
            raise self.file.error(("store",), str(error)) from None
