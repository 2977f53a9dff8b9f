"""Rules that can never apply, because an earlier one covers them and ends the list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ..paths.path_index import PathIndex
from ..paths.patterns import PathPattern
from ..rules.rule import Rule

_PARAMETER: Final = r"\{\w+(?::(\w+))?\}"
_ALL_BELOW: Final = r"([^{]*)\{\w+:path\}"


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one matches."""
    ends = _Ends()
    for place, later in enumerate(rules):
        earlier = next((rules[end] for end in ends.that_may_cover(later) if _covers(rules[end], later)), None)
        if earlier is not None:
            yield earlier, later
        if (later.final or later.blocks) and not later.conditional:
            ends.add(place, later)


class _Ends:
    """Finds the final rules, among thousands, that may cover another rule."""

    def __init__(self) -> None:
        self._everywhere: list[int] = []
        self._index: PathIndex[int] = PathIndex()
        self._alike: dict[str, list[int]] = {}

    def add(self, place: int, rule: Rule) -> None:
        if not rule.patterns:
            self._everywhere.append(place)
        for path, (_, convertors) in zip(rule.paths, rule.patterns, strict=False):
            self._index.add(path, convertors, place)
            self._alike.setdefault(_nameless(path), []).append(place)

    def that_may_cover(self, later: Rule) -> Sequence[int]:
        """Return the places of the final rules that may cover all paths of a rule, in their order."""
        # A rule that covers all paths covers the first one, and the text that it begins with.
        path = later.paths[0]
        found = {*self._everywhere, *self._alike.get(_nameless(path), ())}
        return sorted(found.union(self._index.find(path.partition("{")[0])))


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
    below = re.fullmatch(_ALL_BELOW, written)
    if below is not None and path.partition("{")[0].startswith(below[1]):
        return True
    # The names of parameters do not matter.
    return _nameless(written) == _nameless(path)


def _nameless(path: str) -> str:
    return re.sub(_PARAMETER, lambda found: f"{{{found[1] or 'str'}}}", path)
