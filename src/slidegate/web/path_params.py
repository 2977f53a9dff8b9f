"""Path parameters as keys: a rule reads them from its own paths, because it counts a request before it is routed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final
from uuid import UUID

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor
from starlette.types import Scope

from ..core.errors import ConfigurationError, closest, quoted
from .keys import Key, Value, check_parameter_name, parts_of, utf8
from .paths import PathReader, RulePath

_WHOLE: Final = re.compile(r"[+]?(?:0++(?=[+-]))?(?P<value>[+-]?[0-9]++)(?:\.0*+)?")
_MAX_DIGITS: Final = 4_300
"""The longest number that Python and pydantic parse, because parsing takes quadratic time."""


class PathParam(Value):
    """A key by a path parameter; created by `path_param`.

    Attributes:
        name: The name of the parameter.
    """

    shared = True

    def __init__(self, name: str, fallback: Key | None) -> None:
        check_parameter_name("path_param", name)
        super().__init__(
            f"path:{name}", fallback, lambda scope: utf8(_spelled(scope.get("path_params", {}).get(name, "")))
        )
        self.name = name

    def _encoded(self, value: str | bytes) -> bytes:
        """See `Value._encoded`; numbers and UUIDs are converted to text as for a request."""
        return super()._encoded(_spelled(value) if isinstance(value, (int, float, UUID)) else value)


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


def check_parameters(key: Key, paths: Sequence[RulePath], option: str) -> None:
    """Check that the paths of a rule have the parameters by which it counts.

    Args:
        key: The key of the rule.
        paths: The paths; none for ``"*"``.
        option: The option of the rule that the key was given as, for the error message.

    Raises:
        ConfigurationError: One of the paths does not have the parameter.
    """
    for part in parts_of(key):
        if not isinstance(part, PathParam):
            continue
        for path, names in [(path.path, path.convertors) for path in paths] or [("*", {})]:
            if part.name not in names:
                raise ConfigurationError(
                    f"path_param: {quoted(path)} has no parameter {quoted(part.name)}{closest(part.name, names)}",
                    option,
                )


def with_parameters(scope: Scope, names: Iterable[str], paths: Sequence[RulePath], reader: PathReader) -> Scope:
    """Return the scope of a request with the parameters of a rule's own path, as a router would pass it on.

    Args:
        scope: The scope, which no router has read yet.
        names: The names of the parameters.
        paths: The paths of the rule; odd spellings of a path give the same values.
        reader: Reads the paths of requests.
    """
    values: dict[str, str] = {}
    with suppress(Exception):  # a path of another type; `RuleSet.match` logs it
        for text, path, name in product(reader.texts(scope).all, paths, names):
            given = path.given(name, text)
            if given is not None:
                values.setdefault(name, _meaning(path.convertors[name], given))
    return {**scope, "path_params": {**scope.get("path_params", {}), **values}}


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
