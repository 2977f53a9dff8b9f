"""Values of requests: each is used as described, or refused with the name of the parameter and what was expected."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate.ops.admin.operations import OPERATIONS
from slidegate.ops.admin.parameters import MAX_ERRORS, Parameter, Unusable, fields_of, read_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PARAMETERS = [field for operation in OPERATIONS for field in (*operation.query, *operation.body)]


@settings(max_examples=300)
@given(parameter=st.sampled_from(PARAMETERS), given_value=JSON)
def test_a_value_is_used_exactly_where_its_schema_takes_it(parameter: Parameter, given_value: Any) -> None:
    if jsonschema.Draft202012Validator(parameter.schema()).is_valid(given_value):
        assert parameter.read(given_value) == given_value
    elif isinstance(given_value, str) and parameter.kind == "whole" and given_value.isdigit():
        pass  # a query has text alone
    else:
        with pytest.raises(ValueError, match="expected") as caught:
            parameter.read(given_value)
        assert len(str(caught.value)) < 900


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
def test_the_example_and_the_default_of_a_parameter_can_be_used(parameter: Parameter) -> None:
    for value in (parameter.example, parameter.default):
        if value not in (None, ""):
            assert parameter.read(value) == value


@pytest.mark.parametrize(
    ("given_values", "errors"),
    [
        ({}, ["key: it is missing; for example 'user:42'"]),
        ({"key": ""}, ["key: expected text that is not empty"]),
        ({"key": 7}, ["key: expected text, for example 'user:42', not 7"]),
        ({"key": "x" * 65}, ["key: expected at most 64 characters, not 65"]),
        ({"kye": "a", "key": "a"}, ["'kye': there is no such parameter; did you mean 'key'?"]),
        ({"key": "a", "limit": "10 "}, ["limit: expected a whole number, 1 to 50, for example 9, not '10 '"]),
        ({"key": "a", "limit": "٣"}, ["limit: expected a whole number"]),
        ({"key": "a", "limit": 51}, ["limit: expected a whole number", "not 51"]),
        ({"key": "a", "limit": True}, ["limit: expected a whole number", "not True"]),
        ({"key": "a", "sort": "b"}, ["sort: expected one of up, down, not 'b'"]),
        ({"limit": 0, "sort": "dwon"}, ["limit: ", "did you mean 'down'?", "key: it is missing"]),
    ],
)
def test_the_error_names_the_parameter_and_what_was_expected(given_values: dict[str, Any], errors: list[str]) -> None:
    parameters = [
        Parameter("key", "A key.", required=True, most=64, example="user:42"),
        Parameter("limit", "How many.", "whole", default=9, most=50, example=9),
        Parameter("sort", "How.", "choice", default="up", choices=("up", "down"), example="up"),
    ]
    with pytest.raises(Unusable) as caught:
        read_values(parameters, given_values.items())
    for error in errors:
        assert error in str(caught.value)


def test_a_parameter_that_comes_twice_is_refused_and_what_is_left_out_has_its_default() -> None:
    parameters = [Parameter("limit", "How many.", "whole", default=9, most=50, example=9)]
    with pytest.raises(Unusable, match="limit: it comes twice"):
        read_values(parameters, [("limit", "1"), ("limit", "2")])
    assert read_values(parameters, []) == {"limit": 9}
    assert read_values(parameters, [("limit", "12")]) == {"limit": 12}


def test_an_answer_names_a_bounded_number_of_errors_in_a_bounded_number_of_characters() -> None:
    with pytest.raises(Unusable) as caught:
        read_values([], [("x" * 60_000, "y" * 60_000)] * 1_000)
    assert len(caught.value.errors) == MAX_ERRORS
    assert len(str(caught.value)) < 200 * MAX_ERRORS


def test_a_secret_value_is_never_repeated() -> None:
    parameter = Parameter("value", "A value.", required=True, example="k123", secret=True)
    with pytest.raises(Unusable) as caught:
        read_values([parameter], [("value", 8_315_007)])
    assert "8315007" not in str(caught.value)
    assert any(field.secret for field in PARAMETERS)


@given(JSON.filter(lambda value: not isinstance(value, dict)))
def test_a_body_is_an_object(body: Any) -> None:
    with pytest.raises(Unusable, match="expected a JSON object"):
        fields_of(body)
