"""The parameters of the admin API, as models. Error messages quote the description of a field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError

from ..core.bans.ban import check_has_kind
from ..core.errors import closest
from ..limiter.limiter import ban_length_us, override_length_us
from ..limiter.observers import KINDS
from .messages import InvalidParameters

MAX_TEXT: Final = 1_024
MAX_ERRORS: Final = 20
"""The maximum number of errors in one response."""
MAX_SHOWN: Final = 80

TimeWindow: TypeAlias = Literal["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"]
WINDOWS: Final[tuple[str, ...]] = get_args(TimeWindow)


def _event_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError("not a kind of event")
    return kind


def _duration(text: str) -> str:
    ban_length_us(text)
    return text


def _while(text: str) -> str:
    override_length_us(text)
    return text


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Window: TypeAlias = Annotated[TimeWindow, Field(description=f"one of {', '.join(WINDOWS)}")]
AnyKey: TypeAlias = Annotated[
    Text,
    Field(description='an address, a network or a key as stored, for example "203.0.113.7" or "user:42"'),
]


class Parameters(BaseModel):
    """The parameters of a query, or the fields of a body; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParameters(Parameters):
    """An operation without parameters."""


class StatsQuery(Parameters):
    """How far back the stats go."""

    window: Window = "5m"


class ShadowQuery(Parameters):
    """How far back the stats of shadow rules go."""

    window: Window = "1h"


class HistoryQuery(ShadowQuery):
    """Which time series."""

    rule: Annotated[Text | None, Field(description='the name of a rule, for example "api"')] = None
    route: Annotated[Text | None, Field(description='a route, for example "GET /items/{id}"')] = None


class ClientsQuery(Parameters):
    """Which of the busiest clients."""

    sort: Annotated[
        Literal["requests", "refused", "nearness"], Field(description="one of requests, refused, nearness")
    ] = "requests"
    limit: Annotated[int, Field(ge=1, le=100, description="a whole number from 1 to 100")] = 50


class KeyQuery(Parameters):
    """Which client."""

    key: AnyKey


class RefusalsQuery(Parameters):
    """How many refusals."""

    limit: Annotated[int, Field(ge=1, le=500, description="a whole number from 1 to 500")] = 100


class BansQuery(RefusalsQuery):
    """Which bans."""

    cursor: Annotated[
        str | None, Field(pattern=r"^\d{1,19}:.", max_length=MAX_TEXT, description="the `next` of the previous page")
    ] = None
    policy: Annotated[Text | None, Field(description='the policy or user that banned, for example "abuse"')] = None
    q: Annotated[Text | None, Field(description='a text in target, reason or policy, for example "203.0.113."')] = None


class EventsQuery(RefusalsQuery):
    """Which events."""

    kind: Annotated[
        Annotated[str, AfterValidator(_event_kind)] | None, Field(description=f"one of {', '.join(sorted(KINDS))}")
    ] = None


class TargetQuery(Parameters):
    """The target of a ban."""

    target: AnyKey


class NewBan(Parameters):
    """A ban to record."""

    target: Annotated[
        Text,
        AfterValidator(check_has_kind),
        Field(
            description='an address, a network or a key of the form kind:value, for example "203.0.113.7", '
            '"198.51.100.0/24" or "user:42"'
        ),
    ]
    duration: Annotated[
        Text,
        AfterValidator(_duration),
        Field(description='a length of time up to 400 days, for example "1h", or "permanent"'),
    ]
    reason: Annotated[str, Field(max_length=MAX_TEXT, description=f"at most {MAX_TEXT} characters for operators")] = ""
    force: Annotated[StrictBool, Field(description="true or false")] = False


_LimitName: TypeAlias = Annotated[
    Text, Field(description='the name of a limit, as response headers show it, for example "api"')
]


class LimitQuery(Parameters):
    """Which limit."""

    name: _LimitName


class NewLimit(LimitQuery):
    """A temporary change of a limit."""

    limit: Annotated[Text, Field(description='the limit with another amount, for example "50/minute"')]
    duration: Annotated[
        Text, AfterValidator(_while), Field(description='a length of time from 1s to 30 days, for example "2h"')
    ]
    reason: Annotated[str, Field(max_length=MAX_TEXT, description=f"at most {MAX_TEXT} characters for operators")] = ""


M = TypeVar("M", bound=Parameters)


def read(model: type[M], values: object) -> M:
    """Return the parameters of a request.

    Raises:
        InvalidParameters: `values` is not an object, or a name is unknown, a value invalid or a parameter missing.
    """
    if not isinstance(values, Mapping):
        raise InvalidParameters(("body", f"expected an object, got {in_json(values)}"))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_ERRORS]
    raise InvalidParameters(*(_complaint(model, str(one["loc"][0]), one["type"], one["input"]) for one in errors))


def query(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters of a query.

    Raises:
        InvalidParameters: A parameter is repeated.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise InvalidParameters((name[:MAX_SHOWN], "it is given more than once; give it once"))
        values[name] = value
    return values


def _complaint(model: type[Parameters], name: str, kind: str, value: object) -> tuple[str, str]:
    """Return the name of a parameter and its error message."""
    if kind == "extra_forbidden":
        return name[:MAX_SHOWN], f"there is no such parameter{closest(name, model.model_fields)}"
    expected = f"expected {model.model_fields[name].description}"
    return name, f"it is missing; {expected}" if kind == "missing" else f"{expected}, got {in_json(value)}"


def in_json(value: Any) -> str:
    """Describe a value as JSON: ``the string "abc"``, ``the number 5``, ``null``, ``an array``."""
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    if value is None or isinstance(value, bool):
        return shown
    return f"the {'string' if isinstance(value, str) else 'number'} {shown}"
