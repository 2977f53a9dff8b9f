"""Findings about rules: those that others leave nothing to do, and methods that are misspelt.

Whether a rule is reached is decided by the rules themselves, for sample requests that it matches. The samples are of
every kind that a rule could take from another one: paths of several lengths for a parameter that contains slashes, and
a method that no rule names for rules of all methods. So if none of them reaches a rule, nothing ordinary does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from starlette.convertors import (
    Convertor,
    FloatConvertor,
    IntegerConvertor,
    PathConvertor,
    StringConvertor,
    UUIDConvertor,
)
from starlette.routing import PARAM_REGEX

from ..web.paths import RulePath
from ..web.plan import Met
from ..web.policy import Policy
from ..web.routes import MountedRoute
from ..web.rule_set import RuleSet
from ..web.rules import Rule
from .report import Finding

_MAX_RULES: Final = 1_000
"""The most rules whose order is looked at: each is compared with all others."""
_PATHS: Final = ("", "qwx", "qwx/qwy", "qwx/qwy/qwz")
_TEXTS: Final[Mapping[type[Convertor[Any]], Sequence[str]]] = {
    StringConvertor: ("qwx",),
    PathConvertor: _PATHS,
    IntegerConvertor: ("70431",),
    FloatConvertor: ("70431", "70431.5"),
    UUIDConvertor: ("3f2504e0-4f89-41d3-9a0c-0305e82c3301",),
}
"""Sample texts of parameters, which nobody writes in a rule."""
_MAX_TEXTS: Final = 64
_UNLISTED: Final = "QWX"
"""A method that no rule has, for those of all methods."""
METHODS: Final = (
    *("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "QUERY", "TRACE", "CONNECT"),
    *("ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE"),
    *("MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PRI", "PROPFIND"),
    *("PROPPATCH", "REBIND", "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE"),
    *("UPDATEREDIRECTREF", "VERSION-CONTROL"),
    *("NOTIFY", "PURGE", "SOURCE", "SUBSCRIBE", "UNSUBSCRIBE"),
)
"""The methods of IANA's registry, and those that are in use beside it, the frequent ones first."""


def counting_rules(policy: Policy) -> Sequence[Rule]:
    """Return the rules of a middleware that count, with that of its default limits."""
    rules = [rule for rule in policy.rules.given if rule.counts]
    if policy.default_rule is not None and policy.default_rule.counts:
        rules.append(policy.default_rule)
    return rules


# -- rules that others leave nothing to do -----------------------------------------------------------------------------


def about_unreached_rules(rule_set: RuleSet) -> Iterator[Finding]:
    """Yield the findings about rules that come too late: another one takes all their requests."""
    for rule, above in _taken(rule_set):
        if _does_otherwise(rule, above):
            yield Finding(
                "SG133",
                f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends the "
                "list; write the narrower rule first",
            )


def about_late_exemptions(rule_set: RuleSet) -> Iterator[Finding]:
    """Yield the findings about exemptions whose requests another rule has counted before."""
    unreached = {rule for rule, _ in _taken(rule_set)}
    for index, rule in _ordered(rule_set):
        if not rule.action.exempts or rule in unreached:
            continue
        counting = _counted_by(rule_set, index, [*_samples_of(rule)])
        if counting is not None:
            yield Finding(
                "SG134",
                f"rule {rule.label!r} is exempt, but rule {counting.label!r} above it counts its requests all the "
                "same; write exemptions first",
            )


def _ordered(rule_set: RuleSet) -> Iterator[tuple[int, Rule]]:
    """Yield the rules below the first one, each with its index; none if their order is of no account."""
    rules = [bound.rule for bound in rule_set.own]
    if len(rules) <= _MAX_RULES and any(rule.action.is_final for rule in rules):
        yield from [*enumerate(rules)][1:]


def _taken(rule_set: RuleSet) -> Iterator[tuple[Rule, Rule]]:
    """Yield the rules that no sample reaches, each with a rule above it that takes their requests."""
    for index, rule in _ordered(rule_set):
        above = _taken_by(rule_set, index, [*_samples_of(rule)])
        if above is not None:
            yield rule, above


def _does_otherwise(rule: Rule, above: Rule) -> bool:
    """Return whether a rule would have decided otherwise than the one that takes its requests."""
    if rule.action.exempts:
        return not above.action.exempts
    if rule.action.blocks:
        return not above.action.blocks or rule.action.status != above.action.status
    return True


def _taken_by(rule_set: RuleSet, index: int, samples: Sequence[_Sample]) -> Rule | None:
    """Return a rule that ends the list before another one; None if a sample of that one reaches it."""
    taking: Rule | None = None
    for sample in samples:
        met = _met_by(rule_set, sample)
        if not met:
            return None
        if any(bound is rule_set.own[index] for bound, _ in met):
            return None
        taking = taking or met[-1][0].rule
    return taking


def _counted_by(rule_set: RuleSet, index: int, samples: Sequence[_Sample]) -> Rule | None:
    """Return a rule that counts what a later rule exempts; None if there is a sample that none counts.

    A sample that does not reach the later rule, because an earlier one ends the look at the rules, says nothing of it.
    """
    counting: Rule | None = None
    for sample in samples:
        above: list[Rule] = []
        for bound, _ in _met_by(rule_set, sample):
            if bound is rule_set.own[index]:
                if not above:
                    return None
                counting = counting or above[0]
                break
            if bound.rule.counts and not bound.rule.action.is_shadow and bound.rule.matching.when is None:
                above.append(bound.rule)
    return counting


_Sample = tuple[str, str, str]
"""The type, the method and the path of a request."""


def _met_by(rule_set: RuleSet, sample: _Sample) -> Sequence[Met]:
    """Return the rules that a sample meets."""
    kind, method, path = sample
    return rule_set.met({"type": kind, "method": method, "path": path}, (path,))


def _samples_of(rule: Rule) -> Iterator[_Sample]:
    """Yield sample requests that a rule matches; none if a parameter of its paths is of an unknown kind."""
    paths = [text for path in rule.matching.rule_paths for text in _texts_of(path)]
    if not rule.matching.rule_paths:
        paths = [f"/{text}" for text in _PATHS]
    methods = [_UNLISTED]
    if rule.matching.methods is not None:
        methods = sorted(rule.matching.methods)
    takes_handshakes = rule.matching.methods is None or "GET" in rule.matching.methods
    for path in paths:
        if rule.matching.connection != "websocket":
            yield from (("http", method, path) for method in methods)
        if rule.matching.connection != "http" and takes_handshakes:
            yield "websocket", "GET", path


def _texts_of(path: RulePath) -> Iterator[str]:
    """Yield sample texts of a path."""
    names = [*path.convertors]
    values = [_TEXTS.get(type(path.convertors[name]), ()) for name in names]
    for number, chosen in enumerate(product(*values)):
        if number >= _MAX_TEXTS:
            return
        yield _filled(path.path, dict(zip(names, chosen, strict=True)))


def _filled(path: str, texts: Mapping[str, str]) -> str:
    """Return a path with texts in the place of its parameters, by their names."""
    return PARAM_REGEX.sub(lambda found: texts[found[1]], path)


# -- methods -----------------------------------------------------------------------------------------------------------


def about_method_names(rules: Iterable[Rule], routes: Iterable[MountedRoute] = ()) -> Iterator[Finding]:
    """Yield the findings about methods that no registry and no route has, and that are nearly one that a registry has.

    Args:
        rules: The rules.
        routes: The routes below the middleware, as far as they are known.
    """
    known = {*METHODS}
    for route in routes:
        known.update(route.methods or ())
    for rule in rules:
        if rule.matching.methods is None:
            continue
        for method in sorted(rule.matching.methods - known):
            near = _nearest(method)
            if near is not None:
                yield Finding(
                    "SG135",
                    f"method {method!r} of rule {rule.label!r} is in no registry, so hardly any request has it; did "
                    f"you mean {near!r}?",
                )


def _nearest(method: str) -> str | None:
    """Return the first registered method that a misspelt one may mean; None if there is none."""
    for registered in METHODS:
        if _is_near(method, registered):
            return registered
    return None


def _is_near(one: str, other: str) -> bool:
    """Return whether one text becomes another by one letter more, less or changed, or by a swap of two neighbours."""
    if len(one) != len(other):
        longer, shorter = max(one, other, key=len), min(one, other, key=len)
        return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))
    differing = [at for at, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
    if len(differing) == 1:
        return True
    if len(differing) != 2 or differing[1] != differing[0] + 1:
        return False
    first, second = differing
    return one[first] == other[second] and one[second] == other[first]
