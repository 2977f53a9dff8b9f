"""Path parameters as keys: a rule reads them from its own paths, because it counts a request before it is routed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final
from uuid import UUID

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor
from starlette.types import Scope

from ..core.errors import ConfigurationError, closest, quoted
from .keys import Combined, Key, Value, check_parameter_name, utf8
from .paths import RulePath, normal, route_path

_WHOLE: Final = re.compile(r"[+]?(?:0++(?=[+-]))?(?P<value>[+-]?[0-9]++)(?:\.0*+)?")
_MAX_DIGITS: Final = 4_300
"""The longest number that Python and pydantic parse, because parsing takes quadratic time."""


class PathParam(Value):
    """A key by a path parameter; created by `path_param`.

    Attributes:
        name: The name of the parameter.
    """

    shared: Final = True

    def __init__(self, name: str, fallback: Key | None, paths: Sequence[RulePath] = ()) -> None:
        check_parameter_name("path_param", name)
        super().__init__(f"path:{name}", fallback, self._value)
        self.name = name
        self._paths = paths

    def _encoded(self, value: str | bytes) -> bytes:
        """See `Value._encoded`; numbers and UUIDs are converted to text as for a request."""
        return super()._encoded(_spelled(value) if isinstance(value, (int, float, UUID)) else value)

    def _value(self, scope: Scope) -> bytes:
        for text in _texts(scope) if self._paths else ():
            for path in self._paths:
                given = path.given(self.name, text)
                if given is not None:
                    return utf8(_meaning(path.convertors[self.name], given))
        return utf8(_spelled(scope.get("path_params", {}).get(self.name, "")))


def _texts(scope: Scope) -> Iterator[str]:
    """Yield the texts of a path by which a limit may apply, so that odd spellings give the same value."""
    for text in dict.fromkeys((route_path(scope), scope["path"])):
        for form in dict.fromkeys((text, normal(text))):
            yield form
            yield form[:-1] if form[-1:] == "/" else f"{form}/"


def path_param(name: str, *, fallback: Key | None = None) -> Value:
    """Count each value of a path parameter, digested: ``Rule("/tenants/{tenant}/jobs", key=path_param("tenant"))``.

    The value is the result of the path's convertor. Write ``{id:int}`` in both the rule and the route; otherwise 1 and
    01 are two clients for the rule but one for an endpoint that parses the number itself.

    Args:
        name: The parameter's name, as in the rule's path.
        fallback: The key to use if the parameter is missing or empty; by default the middleware's `client`.

    Raises:
        ConfigurationError: The name is empty or not printable, or the fallback is not a key.
    """
    return PathParam(name, fallback)


def bind(key: Key, paths: Sequence[RulePath], option: str) -> Key:
    """Return a rule's key, whose path parameters are read from the rule's paths; ``"*"`` gives no paths.

    Args:
        key: The key.
        paths: The paths.
        option: The option of the rule that the key was given as, for the error message.

    Raises:
        ConfigurationError: One of the paths does not have the parameter.
    """
    if isinstance(key, Combined):
        return Combined(tuple(bind(part, paths, option) for part in key.keys))
    if not isinstance(key, Value):
        return key
    fallback = None if key.fallback is None else bind(key.fallback, paths, option)
    if not isinstance(key, PathParam):
        bound = copy(key)
        bound.fallback = fallback
        return bound
    for path, names in [(path.path, path.convertors) for path in paths] or [("*", {})]:
        if key.name not in names:
            raise ConfigurationError(
                f"path_param: {quoted(path)} has no parameter {quoted(key.name)}{closest(key.name, names)}", option
            )
    return PathParam(key.name, fallback, paths)


def _meaning(convertor: Convertor[Any], text: str) -> str:
    """Return the value of a parameter, independent of its spelling: 1, 01 and 1.0 are one `{id:int}`."""
    with suppress(Exception):  # a custom convertor that raises must fail in the router, not before the count
        return _spelled(convertor.convert(text))
    # Numbers that pydantic accepts and int() and float() do not: 1.0, 0-5 and _1.
    bare = text.strip().replace("_", "")
    if isinstance(convertor, FloatConvertor):
        with suppress(ValueError):
            return _spelled(float(bare))
    whole = _WHOLE.fullmatch(bare) if isinstance(convertor, IntegerConvertor) else None
    return text if whole is None or len(bare) > _MAX_DIGITS else str(int(whole["value"]))


def _spelled(value: object) -> str:
    """Return the canonical text of a value; -0.0 equals 0.0."""
    return str(value + 0.0 if isinstance(value, float) else value)
