"""What may stand in a configuration file; the editor's JSON Schema is made from the same definitions.

Types and names of keys are checked here. What a value means (a limit, a path, a network) is checked by what it is
handed to, so that the file and the code know one set of rules.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

JsonSchema: TypeAlias = dict[str, Any]

UNKNOWN_KEY: Final = "unknown_key"
WRONG_TABLE: Final = "wrong_table"


def _shape(value: object) -> str:
    """Say which form of a value that may have several is meant, so that an error is about that one alone."""
    if isinstance(value, (dict, BaseModel)):
        return "<table>"
    if isinstance(value, list):
        return "<list>"
    return "<number>" if isinstance(value, int) and not isinstance(value, bool) else "<text>"


def _text_or(*others: str) -> Discriminator:
    def shape(value: object) -> str:
        found = _shape(value)
        return found if found in others else "<text>"

    return Discriminator(shape)


Text: TypeAlias = Annotated[str, Tag("<text>")]
Texts: TypeAlias = Annotated[list[str], Field(min_length=1), Tag("<list>")]
Limits: TypeAlias = Annotated[Text | Texts, _text_or("<list>")]
Entries: TypeAlias = Annotated[Text | Annotated[list[str], Tag("<list>")], _text_or("<list>")]
Trusted: TypeAlias = Annotated[
    Text | Annotated[list[str], Tag("<list>")] | Annotated[int, Field(ge=1, le=64), Tag("<number>")],
    _text_or("<list>", "<number>"),
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, found: object) -> object:
        for name in found if isinstance(found, dict) else ():
            if name not in cls.model_fields:
                raise PydanticCustomError(UNKNOWN_KEY, "unknown key", {"key": name, "known": list(cls.model_fields)})
        return found


class Environment(_Table):
    """The value of an environment variable."""

    env: str = Field(min_length=1, description="The name of the variable.")


class Client(_Table):
    """How the client's address is found."""

    trusted: Trusted = Field(
        default=[],
        description="Networks of the proxies you run, a file of them, or how many proxies stand in front.",
    )
    header: str = Field(default="x-forwarded-for", description="The header in which the proxies name the client.")
    ipv4_prefix: int = Field(default=32, ge=8, le=32, description="Bits of an IPv4 address that make one client.")
    ipv6_prefix: int = Field(default=64, ge=32, le=128, description="Bits of an IPv6 address that make one client.")
    trust_all: bool = Field(default=False, description="Allow trusted networks that cover every address.")


KeyWord: TypeAlias = Literal["client", "everyone", "user"]
MessageKeyWord: TypeAlias = Literal["connection", "client", "everyone", "user"]
_KeyTable: TypeAlias = Annotated["KeyTable", Tag("<table>")]
Key: TypeAlias = Annotated[Annotated[KeyWord, Tag("<text>")] | _KeyTable, _text_or("<table>")]
MessageKey: TypeAlias = Annotated[Annotated[MessageKeyWord, Tag("<text>")] | _KeyTable, _text_or("<table>")]

_VALUES: Final = ("header", "cookie", "query", "path_param")
_COMPLETE: Final = ("client", "combine")
_ONE_SOURCE: Final[JsonSchema] = {
    "oneOf": [
        *({"required": [name]} for name in _VALUES),
        *({"required": [name], "not": {"required": ["fallback"]}} for name in _COMPLETE),
    ]
}


class KeyTable(_Table):
    """Whom a rule counts: one of header, cookie, query, path_param, client and combine."""

    model_config = ConfigDict(json_schema_extra=_ONE_SOURCE)

    header: str | None = Field(default=None, description="Each value of a request header.")
    cookie: str | None = Field(default=None, description="Each value of a cookie.")
    query: str | None = Field(default=None, description="Each value of a query parameter.")
    path_param: str | None = Field(default=None, description="Each value of a parameter of the rule's path.")
    client: Client | None = Field(default=None, description="Each client address, found in a way of its own.")
    combine: list[Key] | None = Field(default=None, min_length=2, description="Each combination of several keys.")
    fallback: Key | None = Field(default=None, description="The key where the value is missing; by default the client.")

    @model_validator(mode="after")
    def _name_one_source(self) -> KeyTable:
        sources = *_VALUES, *_COMPLETE
        given = [name for name in sources if name in self.model_fields_set]
        if len(given) != 1:
            raise PydanticCustomError(WRONG_TABLE, f"expected one of {', '.join(sources)}")
        if self.fallback is not None and given[0] in _COMPLETE:
            raise PydanticCustomError(WRONG_TABLE, f"{given[0]} always finds a key; leave out fallback")
        return self


class RuleTable(_Table):
    """Holds the requests it matches to its limits."""

    path: str = Field(description='A path such as "/items/{id}" or "/api/{rest:path}", or "*" for all.')
    limits: Limits | None = Field(default=None, description='Limits such as "5/minute; 50/hour".')
    methods: Texts | None = Field(default=None, description="HTTP methods; by default all.")
    connection: Literal["http", "websocket"] | None = Field(default=None, description="By default both.")
    key: Key = Field(default="client", description="Whom to count.")
    cost: int = Field(default=1, ge=0, description="Units for one request.")
    count_if: Annotated[list[Annotated[int, Field(ge=100, le=599)]], Field(min_length=1)] | None = Field(
        default=None, description="Count only requests whose answer has one of these statuses."
    )
    count_denied: bool = Field(default=False, description="Count refused requests as well.")
    action: Literal["limit", "shadow", "track"] = Field(default="limit", description="What the rule does.")
    wait: str | None = Field(default=None, description='How long a request may wait for its turn, such as "200ms".')
    wait_max: int = Field(default=16, ge=1, le=1000, description="How many requests of one key may wait at a time.")
    name: str | None = Field(default=None, description="What the limit is called; it keeps the counts together.")
    exempt: bool = Field(default=False, description="Let matching requests pass uncounted; no later rule applies.")
    final: bool = Field(default=False, description="No later rule applies to matching requests.")


class Configuration(_Table):
    """A configuration file of slidegate."""

    model_config = ConfigDict(title="slidegate.toml", json_schema_extra={"not": {"required": ["limits", "rules"]}})

    limits: Limits | None = Field(default=None, description="Limits for each client, instead of rules.")
    rules: list[RuleTable] | None = Field(
        default=None, description="Which requests are held to which limits; every rule that matches applies."
    )
    client: Client = Field(default=Client(), description="Which proxies are believed, and what makes one client.")
    blocklist: Entries | None = Field(default=None, description="Networks refused, or a file of them.")
    allowlist: Entries | None = Field(default=None, description="Networks never refused nor counted, or a file.")
    store: Annotated[
        Text | Annotated[Environment, Tag("<table>")], _text_or("<table>")
    ] | None = Field(default=None, description='Where the counts live, such as "memory://".')  # fmt: skip
    headers: Literal["draft", "legacy", "both", "none"] = Field(
        default="draft", description="Which header fields tell clients where they stand."
    )
    preflight_limits: Limits = Field(
        default="600/minute", description='What CORS preflights are held to; "unlimited" for nothing.'
    )
    message_limits: Limits | None = Field(default=None, description="What messages over a websocket are held to.")
    message_key: MessageKey = Field(default="connection", description="Whose messages are counted together.")
    on_exceeded: Literal["close", "drop", "wait"] = Field(
        default="close", description="What becomes of a message beyond the limit."
    )
    enabled: bool = Field(default=True, description="Whether anything is limited at all.")
    silence: list[str] = Field(default=[], description="Codes of start-up findings that need not be said.")


class _Generator(GenerateJsonSchema):
    """TOML has no null: what may be None may be left out. The names of keys are titles enough."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def nullable_schema(self, schema: NullableSchema) -> JsonSchema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchema:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def json_schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    schema = Configuration.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema}
