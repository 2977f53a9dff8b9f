"""What the admin API takes, as models: they check queries and bodies, and the OpenAPI document is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from ..core.errors import closest, quoted
from ..core.limits import MAX_AMOUNT
from ..limiter.observers import KINDS
from .messages import AdminError

MAX_TEXT: Final = 1_024
MAX_CURSOR: Final = 4_096
MAX_ERRORS: Final = 20
"""How many errors one answer names."""

TimeWindow: TypeAlias = Literal["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"]
WINDOWS: Final[tuple[str, ...]] = get_args(TimeWindow)


def _digits(value: object) -> object:
    """Return the number that a text of a query says."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20 else value


def _whole(value: object) -> object:
    """Return a number without a fraction as an integer: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _event_kind(kind: str | None) -> str | None:
    if kind is not None and kind not in KINDS:
        raise ValueError("no kind of event")
    return kind


Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Cursor: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=MAX_CURSOR, description="The `next` of the page before.")
]
AnyKey: TypeAlias = Annotated[
    Text,
    Field(
        description="A key as stores hold it (`user:42`, `header:x-api-key#1f3a…`), an address, or a network.",
        examples=["203.0.113.7"],
    ),
]
Duration: TypeAlias = Annotated[
    str,
    Field(
        min_length=1, max_length=64, description="How long from now, up to 400 days, or `permanent`.", examples=["1h"]
    ),
]


class Parameters(BaseModel):
    """The parameters of a query, or the fields of a body: these and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParameters(Parameters):
    """Nothing is asked for but the whole answer."""


class StatsQuery(Parameters):
    """Which stats."""

    window: Annotated[TimeWindow, Field(description="How far back to look.", examples=["5m"])] = "5m"


class ShadowQuery(Parameters):
    """Which stats of shadow rules."""

    window: Annotated[TimeWindow, Field(description="How far back to look.", examples=["1h"])] = "1h"


class HistoryQuery(ShadowQuery):
    """Whose stats step by step."""

    rule: Annotated[
        Text | None, Field(description="Only the requests of this rule, by its name.", examples=["api"])
    ] = None
    route: Annotated[
        Text | None, Field(description="Only the requests of this route.", examples=["GET /items/{id}"])
    ] = None


class ClientsQuery(Parameters):
    """Which of the busiest clients."""

    sort: Annotated[
        Literal["requests", "refused", "nearness"],
        Field(description="What puts a client first.", examples=["nearness"]),
    ] = "requests"
    limit: Annotated[
        int,
        Field(strict=True, ge=1, le=100, description="How many to return.", examples=[50]),
        BeforeValidator(_digits),
    ] = 50
    cursor: Cursor | None = None


class KeyQuery(Parameters):
    """Which client."""

    key: AnyKey


class RefusalsQuery(Parameters):
    """How many refusals."""

    limit: Annotated[
        int,
        Field(strict=True, ge=1, le=500, description="How many to return.", examples=[100]),
        BeforeValidator(_digits),
    ] = 100


class BansQuery(RefusalsQuery):
    """Which bans."""

    cursor: Cursor | None = None
    policy: Annotated[
        Text | None, Field(description="Only bans that this policy or person made.", examples=["abuse"])
    ] = None
    q: Annotated[
        Text | None, Field(description="Only bans with this text in target, reason or maker.", examples=["203.0.113."])
    ] = None


class EventsQuery(RefusalsQuery):
    """Which events."""

    after: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_CURSOR,
            description="The `next` of an earlier answer: the first events that came since.",
        ),
    ] = None
    kind: Annotated[
        str | None,
        AfterValidator(_event_kind),
        Field(description="Only events of this kind.", examples=["banned"], json_schema_extra={"enum": [*KINDS]}),
    ] = None


class TargetQuery(Parameters):
    """Whose ban."""

    target: AnyKey


class NewBan(Parameters):
    """Whom to ban, and for how long."""

    target: AnyKey
    duration: Duration
    reason: Annotated[
        str,
        Field(max_length=MAX_TEXT, description="For the operator; clients do not see it.", examples=["scanner"]),
    ] = ""
    force: Annotated[StrictBool, Field(description="Ban the address that this request comes from, too.")] = False


class BanLength(Parameters):
    """How long a ban lasts from now on."""

    target: AnyKey
    duration: Duration


class ClientValue(Parameters):
    """A value that clients send."""

    kind: Annotated[
        Literal["header", "cookie", "query"], Field(description="Where clients send it.", examples=["header"])
    ]
    name: Annotated[Text, Field(description="The name of the header, cookie or parameter.", examples=["X-API-Key"])]
    value: Annotated[Text, Field(description="The value; it is not repeated nor kept.", examples=["k123"])]


class KeyBody(Parameters):
    """Which key."""

    key: AnyKey


class Charge(KeyBody):
    """What to charge to a key."""

    rule: Annotated[Text, Field(description="The name or identity of a rule.", examples=["api"])]
    units: Annotated[
        int,
        Field(strict=True, ge=1, le=MAX_AMOUNT, description="How many units to charge.", examples=[1]),
        BeforeValidator(_whole),
    ]


class InvalidParameters(AdminError):
    """Values of a request that cannot be used: (name, message) of each of them, of which 20 are named at most."""

    def __init__(self, *errors: tuple[str, str]) -> None:
        named = errors[:MAX_ERRORS]
        detail = "; ".join(f"{name}: {message}" for name, message in named)
        super().__init__(422, "invalid", detail, errors=[{"field": name, "message": text} for name, text in named])


M = TypeVar("M", bound=Parameters)


def read(model: type[M], values: object) -> M:
    """Return the parameters of a request.

    Raises:
        InvalidParameters: They are no object; or a name is unknown, a value cannot be used, or one is missing.
    """
    if not isinstance(values, Mapping):
        raise InvalidParameters(("body", f"expected a JSON object, not {quoted(values)}"))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:MAX_ERRORS]
    fields = model.model_json_schema(schema_generator=ParameterSchema)["properties"]
    raise InvalidParameters(*(_complaint(one["type"], str(one["loc"][0]), one["input"], fields) for one in errors))


def query(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters of a query, each of which comes once.

    Raises:
        InvalidParameters: One comes twice.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise InvalidParameters((quoted(name)[1:-1], "it comes twice; give it once"))
        values[name] = value
    return values


def _complaint(kind: str, name: str, value: object, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return a name, and what was expected of its value. The text of a value is not repeated: it may be a secret."""
    if kind == "extra_forbidden":
        return quoted(name), f"there is no such parameter{closest(name[:64], fields)}"
    schema = fields[name]
    example = f", for example {schema['examples'][0]!r}" if "examples" in schema else ""
    if kind == "missing":
        return name, f"it is missing{example.replace(', ', '; ', 1)}"
    if "enum" in schema:
        hint = closest(value[:64], schema["enum"]) if isinstance(value, str) else ""
        return name, f"expected one of {', '.join(schema['enum'])}, not {quoted(value)}{hint}"
    if schema["type"] == "integer":
        bounds = f"{schema['minimum']} to {schema['maximum']}"
        return name, f"expected a whole number, {bounds}{example}, not {quoted(value)}"
    if schema["type"] == "boolean":
        return name, f"expected true or false, not {quoted(value)}"
    if isinstance(value, str) and len(value) > schema["maxLength"]:
        return name, f"expected at most {schema['maxLength']} characters, not {len(value)}"
    return name, f"expected text{' that is not empty' if value == '' else ''}{example}"


class AnswerSchema(GenerateJsonSchema):
    """Leaves out titles, because the names of fields suffice."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """See `GenerateJsonSchema`."""
        return False


class ParameterSchema(AnswerSchema):
    """Leaves out null as well, which stands for a parameter that is not given."""

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """See `GenerateJsonSchema`."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> dict[str, Any]:
        """See `GenerateJsonSchema`."""
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)
