"""A function that cannot be called with what it will be given is refused, and no function that can."""

import functools
from collections.abc import Callable
from inspect import signature
from operator import itemgetter
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, RateLimit, RateLimitMiddleware, Rule
from slidegate.dashboard import Dashboard
from slidegate.limiter import Limiter

from ..asgi import hello

PLACES: dict[str, tuple[Callable[[Any], object], int]] = {
    "limits": (lambda function: Rule("*", function), 1),
    "limits at an endpoint": (lambda function: RateLimit(limits=function), 1),
    "default_limits": (lambda function: RateLimitMiddleware(hello, default_limits=function), 1),
    "key": (lambda function: Rule("*", "5/minute", key=function), 1),
    "fair": (lambda function: Rule("*", concurrency=2, wait="1s", fair=function), 1),
    "cost": (lambda function: Rule("*", "5/minute", cost=function), 1),
    "when": (lambda function: Rule("*", block=True, when=function), 1),
    "when of a policy": (lambda function: BanPolicy(when=function), 1),
    "count_if": (lambda function: Rule("*", "5/minute", count_if=function), 1),
    "user": (lambda function: Dashboard(Limiter(), user=function), 1),
    "on_refused": (lambda function: RateLimitMiddleware(hello, on_refused=function), 2),
}
"""What makes something with a function, and how many arguments this is called with."""

PARAMETERS = ["a", "b", "c=1", "*more", "d", "e=2", "**options"]
"""In an order that Python takes; those behind `*more` are given by name."""


def function_of(parameters: str) -> Any:
    return eval(f"lambda {parameters}: None")


def class_of(method: str, parameters: str) -> Any:
    return type("Class", (), {method: function_of(f"self, {parameters}")})


def through(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> None:
        """Hands nothing on."""

    return wrapper


FORMS: dict[str, Callable[[str], Any]] = {
    "itself": function_of,
    "a partial": lambda text: functools.partial(function_of(text)),
    "a partial with an argument": lambda text: functools.partial(function_of(text), 1),
    "a partial with a name": lambda text: functools.partial(function_of(text), d=1),
    "wrapped": lambda text: through(function_of(text)),
    "an object": lambda text: class_of("__call__", text)(),
    "a method": lambda text: class_of("method", text)().method,
    "a class": lambda text: class_of("__init__", text),
    "static": lambda text: type("Class", (), {"method": staticmethod(function_of(text))}).method,
}


def can_be_called(function: Callable[..., Any], arguments: int) -> bool:
    try:
        function(*range(arguments))
    except TypeError:
        return False
    return True


@given(st.sets(st.sampled_from(PARAMETERS)), st.sampled_from([*PLACES]), st.sampled_from([*FORMS]))
def test_a_function_is_taken_if_it_can_be_called_with_what_it_gets(given: set[str], place: str, form: str) -> None:
    before, behind = ([one for one in part if one in given] for part in (PARAMETERS[:3], PARAMETERS[4:]))
    if "*more" in given:
        before.append("*more")
    elif {"d", "e=2"} & given:
        before.append("*")
    function = FORMS[form](", ".join(before + behind))
    try:
        signature(function)
    except ValueError:  # of a partial with what its function does not take
        assume(False)
    make, arguments = PLACES[place]
    if can_be_called(function, arguments):
        make(function)
        return
    with pytest.raises(ConfigurationError, match="a function of") as caught:
        make(function)
    assert caught.value.option == place.partition(" ")[0]


def counted(request: object, status: int = 401) -> None:
    """Stands for a function of the user's."""


UNREADABLE = type("Unreadable", (), {"__call__": lambda self, *args: None, "__signature__": "no signature"})()
TAKEN = {
    "a mock": Mock(),
    "a magic mock": MagicMock(),
    "an async mock": AsyncMock(),
    "a mock like a function": create_autospec(counted),
    "an item": itemgetter("x"),
    "a method of a set": frozenset({401}).__contains__,
    "a builtin": len,
    "a cached function": functools.lru_cache(counted),
    "a class": str,
    "without a signature": UNREADABLE,
}


@pytest.mark.parametrize("kind", TAKEN)
def test_what_has_no_signature_of_its_own_is_taken(kind: str) -> None:
    for place, (make, arguments) in PLACES.items():
        if arguments == 1 and place != "user":
            make(TAKEN[kind])
