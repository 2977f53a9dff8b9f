"""Findings about order: of rules, of the layers of an application, and of decorators.

Whether a rule is reached is decided by the rules themselves, for sample requests that it matches. The samples are of
every kind that a rule could take from another one: paths of several lengths for a parameter that contains slashes, and
a method that no rule names for rules of all methods. So if none of them reaches a rule, nothing ordinary does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from starlette.convertors import (
    Convertor,
    FloatConvertor,
    IntegerConvertor,
    PathConvertor,
    StringConvertor,
    UUIDConvertor,
)
from starlette.routing import PARAM_REGEX

from .decorated import is_bare, wrapped_by
from .routes import MountedRoute, attribute_of, layers
from .rules import Rule

if TYPE_CHECKING:
    from .paths import RulePath
    from .plan import Met
    from .policy import Policy
    from .rule_set import RuleSet

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
_USUAL_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
METHODS: Final = (
    *(*_USUAL_METHODS, "HEAD", "OPTIONS", "QUERY", "TRACE", "CONNECT"),
    *("ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "MERGE"),
    *("MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PRI", "PROPFIND"),
    *("PROPPATCH", "REBIND", "REPORT", "SEARCH", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE"),
    *("UPDATEREDIRECTREF", "VERSION-CONTROL"),
    *("NOTIFY", "PURGE", "SOURCE", "SUBSCRIBE", "UNSUBSCRIBE"),
)
"""The methods of IANA's registry, and those that are in use beside it, the frequent ones first."""


# -- rules that others leave nothing to do -----------------------------------------------------------------------------


def about_order(rule_set: RuleSet) -> Iterator[tuple[str, str]]:
    """Yield the findings about rules that come too late, each as its code and its message."""
    rules = [bound.rule for bound in rule_set.own]
    if len(rules) > _MAX_RULES or not any(rule.final or rule.blocks for rule in rules):
        return
    for index, rule in enumerate(rules):
        samples = [*_samples_of(rule)]
        above = _taken_by(rule_set, index, samples) if index else None
        if above is not None and _does_otherwise(rule, above):
            yield (
                "SG133",
                f"rule {rule.label!r} never applies: rule {above.label!r} above it takes all its requests and ends the "
                "list; write the narrower rule first",
            )
        counting = _counted_by(rule_set, index, samples) if rule.exempt and index and above is None else None
        if counting is not None:
            yield (
                "SG134",
                f"rule {rule.label!r} is exempt, but rule {counting.label!r} above it counts its requests all the "
                "same; write exemptions first",
            )


def _does_otherwise(rule: Rule, above: Rule) -> bool:
    """Return whether a rule would have decided otherwise than the one that takes its requests."""
    return not ((rule.exempt and above.exempt) or (rule.blocks and above.blocks and rule.status == above.status))


def _taken_by(rule_set: RuleSet, index: int, samples: Sequence[_Sample]) -> Rule | None:
    """Return a rule that ends the list before another one; None if a sample of that one reaches it."""
    taking: Rule | None = None
    for sample in samples:
        met = _met_by(rule_set, sample)
        if any(bound is rule_set.own[index] for bound, _ in met) or not met:
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
            if bound.rule.counts and not bound.rule.shadow and bound.rule.when is None:
                above.append(bound.rule)
    return counting


_Sample = tuple[str, str, str]
"""The type, the method and the path of a request."""


def _met_by(rule_set: RuleSet, sample: _Sample) -> Sequence[Met]:
    """Return the rules that a sample meets."""
    kind, method, path = sample
    met, _ = rule_set.met({"type": kind, "method": method, "path": path}, (path,))
    return met


def _samples_of(rule: Rule) -> Iterator[_Sample]:
    """Yield sample requests that a rule matches; none if a parameter of its paths is of an unknown kind."""
    paths = [text for path in rule.rule_paths for text in _texts_of(path)]
    if not rule.rule_paths:
        paths = [f"/{text}" for text in _PATHS]
    methods = sorted(rule.methods) if rule.methods is not None else [_UNLISTED]
    for path in paths:
        if rule.connection != "websocket":
            yield from (("http", method, path) for method in methods)
        if rule.connection != "http" and (rule.methods is None or "GET" in rule.methods):
            yield "websocket", "GET", path


def _texts_of(path: RulePath) -> Iterator[str]:
    """Yield sample texts of a path."""
    names = [*path.convertors]
    values = [_TEXTS.get(type(path.convertors[name]), ()) for name in names]
    for number, chosen in enumerate(product(*values)):
        if number >= _MAX_TEXTS:
            return
        known = dict(zip(names, chosen, strict=True))
        yield PARAM_REGEX.sub(lambda found, known=known: known[found[1]], path.path)  # type: ignore[misc]


# -- methods -----------------------------------------------------------------------------------------------------------


def about_method_names(rules: Iterable[Rule], routes: Iterable[MountedRoute] = ()) -> Iterator[tuple[str, str]]:
    """Yield the findings about methods that no registry and no route has, and that are nearly one that a registry has.

    Args:
        rules: The rules.
        routes: The routes below the middleware, as far as they are known.
    """
    known = {*METHODS}.union(*(route.methods or () for route in routes))
    for rule in rules:
        for method in sorted((rule.methods or frozenset()) - known):
            near = next((one for one in METHODS if _is_near(method, one)), "")
            if near:
                yield (
                    "SG135",
                    f"method {method!r} of rule {rule.label!r} is in no registry, so hardly any request has it; did "
                    f"you mean {near!r}?",
                )


def _is_near(one: str, other: str) -> bool:
    """Return whether one text becomes another by one letter more, less or changed, or by a swap of two neighbours."""
    if len(one) < len(other):
        one, other = other, one
    if len(one) > len(other) + 1:
        return False
    if len(one) > len(other):
        return any(one[:at] + one[at + 1 :] == other for at in range(len(one)))
    differing = [at for at, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
    if len(differing) == 1:
        return True
    if len(differing) != 2 or differing[1] != differing[0] + 1:
        return False
    first, second = differing
    return one[first] == other[second] and one[second] == other[first]


def about_methods_of_routes(
    rules: Iterable[Rule], routes: Sequence[MountedRoute], may_meet: Callable[[str, str], bool]
) -> Iterator[tuple[str, str]]:
    """Yield the findings about methods of rules that no route of exactly their paths takes.

    Methods that other things than routes answer are left out: OPTIONS, HEAD, and those of WebDAV and of caches.

    Args:
        rules: The rules.
        routes: The routes below the middleware.
        may_meet: Tells whether a request may match two paths.
    """
    shapes = {_shape(route.path) for route in routes if ":path}" not in route.path}
    for rule in rules:
        paths = [path.path for path in rule.rule_paths]
        if rule.blocks or rule.methods is None or not paths or not shapes.issuperset(map(_shape, paths)):
            continue
        meeting = [route.methods for route in routes if any(may_meet(path, route.path) for path in paths)]
        if None in meeting:  # an endpoint that takes every method, or an application whose routes cannot be read
            continue
        taken = set[str]().union(*(methods for methods in meeting if methods is not None))
        missing = [method for method in _USUAL_METHODS if method in rule.methods and method not in taken]
        if missing:
            yield (
                "SG136",
                f"rule {rule.label!r} is for {', '.join(missing)}, which no route of its path takes; they take "
                f"{', '.join(sorted(taken - {'HEAD'}))}",
            )


def _shape(path: str) -> str:
    """Return a path without the names of its parameters."""
    return PARAM_REGEX.sub(lambda found: f"{{{found[2] or ''}}}", path)


# -- decorators and layers ---------------------------------------------------------------------------------------------


def about_decorators(routes: Sequence[MountedRoute]) -> Iterator[tuple[str, str]]:
    """Yield the findings about limits that were put around a function after its route had taken it."""
    within = {id(inner) for route in routes for inner in wrapped_by(route.endpoint)}
    for route in routes:
        if is_bare(route.endpoint) and id(route.endpoint) not in within:
            yield (
                "SG137",
                f"@RateLimit stands above the decorator of route {route.label!r}, which has taken the function without "
                "the limit, so nothing is counted; write @RateLimit below it, directly above the function",
            )


def about_layers(policy: Policy, app: object) -> Iterator[tuple[str, str]]:
    """Yield the finding about CORS within: answers of this middleware lack its header fields."""
    if policy.refusals.on_refused is None and _refuses(policy) and any(map(_is_cors, layers(app))):
        yield (
            "SG138",
            "CORSMiddleware is inside this middleware, so browsers hide its refusals from scripts: they see a network "
            "error in place of 429; add CORSMiddleware outside, which is after this middleware",
        )


def _refuses(policy: Policy) -> bool:
    """Return whether a middleware refuses requests itself, beside limits at endpoints, which are within."""
    rules = any(rule.blocks or (rule.counts and not rule.shadow) for rule in policy.rules.given)
    bans = any(not one.shadow for one in policy.signals.policies.values())
    return rules or bans or policy.default_rule is not None or policy.lists["blocklist"] is not None


def _is_cors(layer: object) -> bool:
    """Return whether an application is CORSMiddleware, or one that will put it around its routes."""
    cors: Any = attribute_of(sys.modules.get("starlette.middleware.cors"), "CORSMiddleware")
    if cors is None:  # who has not imported it does not use it
        return False
    kinds: Collection[Any] = [attribute_of(added, "cls") for added in attribute_of(layer, "user_middleware", ())]
    return any(isinstance(kind, type) and issubclass(kind, cors) for kind in (type(layer), *kinds))
