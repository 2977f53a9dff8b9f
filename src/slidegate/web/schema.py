"""What may stand in a configuration file; the editor's JSON Schema is made from the same definitions.

Types and names of keys are checked here. What a value means (a limit, a path, a network) is checked by what it is
handed to, so that the file and the code know one set of rules.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

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
Key: TypeAlias = Annotated[
    Annotated[KeyWord, Tag("<text>")] | Annotated["KeyTable", Tag("<table>")], _text_or("<table>")
]

_SOURCES: Final = ("header", "cookie", "query", "path_param", "client", "combine")


class KeyTable(_Table):
    """Whom a rule counts: one of header, cookie, query, path_param, client and combine."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in _SOURCES]})

    header: str | None = Field(default=None, description="Each value of a request header.")
    cookie: str | None = Field(default=None, description="Each value of a cookie.")
    query: str | None = Field(default=None, description="Each value of a query parameter.")
    path_param: str | None = Field(default=None, description="Each value of a parameter of the rule's path.")
    client: Client | None = Field(default=None, description="Each client address, found in a way of its own.")
    combine: list[Key] | None = Field(default=None, min_length=2, description="Each combination of several keys.")
    fallback: Key | None = Field(default=None, description="The key where the value is missing; by default the client.")

    @model_validator(mode="after")
    def _name_one_source(self) -> KeyTable:
        given = [name for name in _SOURCES if name in self.model_fields_set]
        if len(given) != 1:
            raise PydanticCustomError(WRONG_TABLE, f"expected one of {', '.join(_SOURCES)}")
        if self.fallback is not None and given[0] in ("client", "combine"):
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

    model_config = ConfigDict(
        title="slidegate.toml", json_schema_extra={"not": {"required": ["limits", "rules"]}}
    )

    limits: Limits | None = Field(default=None, description="Limits for each client, instead of rules.")
    rules: Annotated[list[RuleTable], Field(min_length=1)] | None = Field(
        default=None, description="Which requests are held to which limits; every rule that matches applies."
    )
    client: Client = Field(default=Client(), description="How the client's address is found.")
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
    enabled: bool = Field(default=True, description="Whether anything is limited at all.")
    silence: list[str] = Field(default=[], description="Codes of start-up findings that need not be said.")


def json_schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Configuration.model_json_schema()}
