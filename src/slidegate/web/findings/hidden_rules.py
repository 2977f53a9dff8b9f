"""Rules that can never apply, because an earlier one covers them and ends the list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ..paths.patterns import PathPattern
from ..rules.rule import Rule

_PARAMETER: Final = re.compile(r"\{\w+(?::(\w+))?\}")
_ALL_BELOW: Final = re.compile(r"([^{]*)\{\w+:path\}")


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one matches."""
    for place, later in enumerate(rules):
        earlier = next((rule for rule in rules[:place] if rule.final and _covers(rule, later)), None)
        if earlier is not None:
            yield earlier, later


def _covers(earlier: Rule, later: Rule) -> bool:
    methods = frozenset({"GET"}) if later.connection == "websocket" else later.methods
    return (
        (earlier.connection is None or earlier.connection == later.connection)
        and (earlier.methods is None or (methods is not None and methods <= earlier.methods))
        and _covers_path(earlier, later)
    )


def _covers_path(earlier: Rule, later: Rule) -> bool:
    if not earlier.patterns or not later.patterns:
        return not earlier.patterns
    one_by_one = zip(later.paths, later.patterns, strict=True)
    return all(any(_covers_one(earlier, place, *asked) for place in range(len(earlier.paths))) for asked in one_by_one)


def _covers_one(earlier: Rule, place: int, path: str, pattern: PathPattern) -> bool:
    written, (known, _) = earlier.paths[place], earlier.patterns[place]
    if not pattern[1]:
        return known.match(path) is not None
    below = _ALL_BELOW.fullmatch(written)
    if below is not None and path.partition("{")[0].startswith(below[1]):
        return True
    # The names of parameters do not matter.
    return _nameless(written) == _nameless(path)


def _nameless(path: str) -> str:
    return _PARAMETER.sub(lambda found: f"{{{found[1] or 'str'}}}", path)
