"""Keys by a parameter of the path; a rule finds the parameter with its own paths, before any router does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from starlette.convertors import Convertor, IntegerConvertor
from starlette.types import Scope

from ...core.errors import ConfigurationError, closest, quoted
from ..matching import PathPattern, route_path
from .key import Combined, Key, Value, check_parameter_name

_MOST_DIGITS: Final = 4_300
"""The longest number that Python and pydantic make of a text: reading a longer one takes time by the square."""


class PathParam(Value):
    """A parameter of the path; made by `path_param`.

    Attributes:
        name: The name of the parameter.
    """

    def __init__(
        self,
        name: str,
        fallback: Key | None,
        patterns: Sequence[PathPattern] = (),
        read: str = "",
    ) -> None:
        check_parameter_name("path_param", name)
        super().__init__(f"path:{name}", f"path:{name}", fallback)
        self.name = name
        self._patterns = patterns
        self._read = read

    def tied(self, patterns: Sequence[PathPattern]) -> PathParam:
        """Return the same key for a rule, whose patterns find the parameter before any router does."""
        return PathParam(self.name, self.fallback, patterns)

    def at(self, path: str) -> PathParam:
        """Return the same key for a request whose path is read as `path`."""
        return PathParam(self.name, self.fallback, self._patterns, path)

    def encoded(self, value: str | bytes) -> bytes:
        """See `Value.encoded`; a whole number is that of ``{name:int}``."""
        return super().encoded(str(value) if isinstance(value, (int, float, UUID)) else value)

    def value(self, scope: Scope) -> bytes:
        value = scope.get("path_params", {}).get(self.name, "")
        path = self._read or (route_path(scope) if self._patterns else "")
        for pattern, convertors in self._patterns:
            found = pattern.match(path)
            if found is not None:
                value = _meaning(convertors[self.name], found[self.name])
                break
        return str(value).encode(errors="surrogatepass")


def path_param(name: str, *, fallback: Key | None = None) -> Value:
    """Count each value of a path parameter, digested: ``Rule("/tenants/{tenant}/jobs", key=path_param("tenant"))``.

    The value is the one that the convertor in the path makes: write ``{id:int}`` in the rule and in the route, or 1
    and 01 are two clients for the rule and one for an endpoint that makes a number of the text itself.

    Args:
        name: The parameter's name, as in the rule's path.
        fallback: The key to use where the parameter is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name is empty, or the fallback is no key.
    """
    return PathParam(name, fallback)


def bind(key: Key, patterns: Sequence[PathPattern], paths: Sequence[str]) -> Key:
    """Tie a rule's key to the rule's paths.

    Raises:
        ConfigurationError: One of the paths does not have the parameter.
    """
    if isinstance(key, Combined):
        return Combined(tuple(bind(part, patterns, paths) for part in key.keys))
    if not isinstance(key, PathParam):
        return key
    of_each_path = [convertors for _, convertors in patterns] or [{}]
    for path, convertors in zip(paths, of_each_path, strict=True):
        if key.name not in convertors:
            raise ConfigurationError(
                f"path_param: {quoted(path)} has no parameter {quoted(key.name)}{closest(key.name, convertors)}"
            )
    return key.tied(patterns)


def read_at(key: Key, path: str) -> Key:
    """Return a key for a request whose path is read as `path`."""
    if isinstance(key, Combined):
        return Combined(tuple(read_at(part, path) for part in key.keys))
    return key.at(path) if isinstance(key, PathParam) else key


def _meaning(convertor: Convertor[Any], text: str) -> str:
    """Return the value of a parameter, however it is spelled: 1, 01 and 1.0 are one `{id:int}`."""
    with suppress(Exception):  # a convertor of the user's fails in the router too, and not before the count
        return str(convertor.convert(text))
    if isinstance(convertor, IntegerConvertor) and len(text.strip()) <= _MOST_DIGITS:
        # Only a spelling as odd as 1.0 needs this.
        from decimal import Decimal

        with suppress(ValueError, ArithmeticError):
            return str(int(Decimal(text)))
    return text
