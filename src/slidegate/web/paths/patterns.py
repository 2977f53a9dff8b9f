"""The patterns of paths in Starlette's syntax, and the errors of paths that no request can have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from starlette.convertors import Convertor
from starlette.routing import PARAM_REGEX, compile_path

from ...core.errors import ConfigurationError

_FOREIGN: Final = re.compile(r"<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[*+]|\(\?|[$]$|/\^")
"""What regular expressions and other libraries write for a part that varies."""

PathPattern: TypeAlias = tuple[re.Pattern[str], Mapping[str, Convertor[Any]]]
"""A regular expression for the paths that are meant, and the convertors of its parameters."""


def compile_pattern(path: object) -> PathPattern:
    """Return a path's pattern, and the convertors of its parameters.

    Raises:
        ConfigurationError: It is no path in Starlette's syntax, or no request can have it.
    """
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'path: expected "*" or a path such as "/items/{{id}}", not {path!r}')
    if "*" in path and _FOREIGN.search(path) is None:
        raise ConfigurationError(
            f'path: {path!r} is not in Starlette\'s syntax; write "{path.partition("*")[0]}{{rest:path}}" for all below'
        )
    _check_reachable(path)
    try:
        pattern, _, convertors = compile_path(path)
    except (AssertionError, ValueError) as error:
        raise ConfigurationError(f"path: {path!r} cannot be used: {error}") from None
    # DOTALL: "{rest:path}" must not end at a newline that a narrower route below it takes.
    return re.compile(pattern.pattern, re.DOTALL), convertors


def _check_reachable(path: str) -> None:
    """Check that requests can have a path: it is decoded, and holds no query, no fragment and no stray brace."""
    foreign = _FOREIGN.search(path)
    if foreign is not None:
        raise ConfigurationError(
            f"path: {path!r} is not in Starlette's syntax, where {foreign[0]!r} means itself; write for example "
            '"/items/{id}", "/items/{id:int}", "/api/{rest:path}" for all below, or several paths, ["/a", "/b"]'
        )
    end = re.search(r"[?#]", path)
    if end is not None:
        what = "query" if end[0] == "?" else "fragment"
        raise ConfigurationError(
            f"path: {path!r} can never match: the {what} is no part of a path; write {path[: end.start()]!r}"
        )
    if re.search(r"[{}]", PARAM_REGEX.sub("", path)):
        raise ConfigurationError(
            f'path: {path!r} can never match: a brace in it is no parameter; write for example "/items/{{id:int}}"'
        )
    if re.search(r"%[0-9A-Fa-f]{2}", path):
        raise ConfigurationError(
            f"path: {path!r} can never match: requests are compared decoded; write {unquote(path)!r}"
        )
