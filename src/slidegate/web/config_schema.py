"""The tables and keys of a configuration file. The JSON Schema for editors is generated from the same definitions.

Names of keys and types of values are checked here. The meaning of a value (a limit, a path, a network) is checked by
the object that a table creates, so that file and code share one set of checks. Validation replaces tables by these
objects. The `ConfigLoader` is the context of the validation.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

from ..core.errors import ConfigurationError
from ..core.quotas import Quota
from . import keys
from .client_ip import client_ip
from .keys import user
from .lists import ListFile, Networks
from .mcp import McpTool, mcp_tool
from .networks import NetworkFile, key_by
from .path_params import path_param
from .rules import EXCLUSIONS, NEEDS, Rule
from .websockets import MessageLimits

if TYPE_CHECKING:
    from .config import ConfigLoader

_MAX_WEIGHT: Final = 1_000_000
_KEYS: Final[dict[str, keys.Key]] = {"everyone": keys.everyone, "user": user}


Texts: TypeAlias = Annotated[list[str], Field(min_length=1)]
Paths: TypeAlias = str | Texts
Trusted: TypeAlias = str | list[str] | Annotated[int, Field(ge=1, le=64)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    def made(self, loader: ConfigLoader) -> object:
        """Return the object that the table describes.

        Raises:
            ConfigurationError: A value is invalid.
        """
        raise NotImplementedError

    @property
    def given(self) -> dict[str, Any]:
        """The keys that are present in the file, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _made(table: _Table, info: Any) -> Any:
    return table.made(info.context)


_T = TypeVar("_T", bound=_Table)
Made: TypeAlias = Annotated[_T, AfterValidator(_made)]
"""Annotates a field whose value is a table in the file and the created object after validation."""


class Environment(_Table):
    """The value of an environment variable."""

    env: str = Field(min_length=1)
    """The name of the variable, such as "SLIDEGATE_STORE"."""


class QuotaTable(_Table):
    """An amount for each day, week, month or year of the calendar."""

    quota: str
    """The amount and its period, such as "10000/month"."""
    zone: str = "UTC"
    """The time zone of the calendar, such as "Europe/Berlin"."""
    starts: str | int | None = None
    """Where periods start: "06:00" in a day, "sunday" in a week, 15 in a month, "04-01" in a year."""
    name: str | None = None
    """The name of the quota in headers."""

    def made(self, loader: ConfigLoader) -> Quota:
        """See `_Table.made`."""
        return Quota(self.quota, zone=self.zone, starts=self.starts, name=self.name)


Limits: TypeAlias = str | Made[QuotaTable] | Annotated[list[str | Made[QuotaTable]], Field(min_length=1)]


class Client(_Table):
    """How the client's address is found."""

    trusted: Trusted = []
    """Networks of your proxies, such as ["10.0.0.0/8"], a file of them, or the number of proxies in front."""
    header: str = "x-forwarded-for"
    """The header in which the proxies name the client."""
    ipv4_prefix: int = Field(default=32, ge=8, le=32)
    """The prefix length that identifies one IPv4 client."""
    ipv6_prefix: int = Field(default=64, ge=32, le=128)
    """The prefix length that identifies one IPv6 client."""
    trust_all: bool = False
    """Allow trusted networks that cover most addresses."""

    def made(self, loader: ConfigLoader) -> keys.Key:
        """See `_Table.made`."""
        trusted = loader.networks(self.trusted) if isinstance(self.trusted, str) else self.trusted
        return client_ip(trusted, **self.model_dump(exclude={"trusted"}))


def _combined_with(client: Any, info: Any) -> Any:
    """Let keys in later parts of the file combine this client."""
    info.context.client = info.context.code.get("client") or client
    return client


class ListTable(_Table):
    """A file that lists networks."""

    path: str
    """The file, relative to this one, such as "blocked.netset"."""
    name: str = ""
    """The name of the list; by default the file's name without suffix."""
    strict: bool = True
    """Whether host bits after the prefix are an error."""

    def made(self, loader: ConfigLoader) -> ListFile:
        """See `_Table.made`."""
        return ListFile(**{**self.given, "path": loader.beside(self.path)})


def _listed(found: str | ListFile | list[str | ListFile], info: Any) -> Networks:
    """Return a blocklist or an allowlist: a list of strings names networks, a single string a file of them."""
    loader: ConfigLoader = info.context
    entries = (
        found if isinstance(found, list) else [ListFile(loader.beside(found)) if isinstance(found, str) else found]
    )
    networks = [entry for entry in entries if isinstance(entry, str)]
    files = [entry for entry in entries if isinstance(entry, ListFile)]
    if networks and files:
        raise ConfigurationError("expected networks or tables, not both")
    return loader.follow(files) if files else Networks(networks)


Lists: TypeAlias = Annotated[str | Made[ListTable] | list[str | Made[ListTable]], AfterValidator(_listed)]
_Named: Final = AfterValidator(lambda word: _KEYS.get(word, word))
Key: TypeAlias = Annotated[Literal["client", "everyone", "user"], _Named] | Made["KeyTable"]
BanKey: TypeAlias = Annotated[Literal["client", "user"], _Named] | Made["KeyTable"]
_VALUES: Final = {**keys.SENT_BY_NAME, "path_param": path_param}
_SOURCES: Final = (*_VALUES, "client", "combine", "mcp_tool", "network")
_SOURCES_OF: Final = {"fallback": tuple(_VALUES), "validated": ("mcp_tool",), "by": ("network",)}
"""The sources of a key that accept an additional option."""
_ONE_SOURCE: Final[dict[str, Any]] = {
    "oneOf": [
        {
            "required": [source],
            "not": {"anyOf": [{"required": [option]} for option, those in _SOURCES_OF.items() if source not in those]},
        }
        for source in _SOURCES
    ]
}
_CONDITIONS: Final[dict[str, Any]] = {
    "oneOf": [
        {"required": ["mcp_tool", "validated"], "oneOf": [{"required": ["is_in"]}, {"required": ["is_method"]}]},
        {
            "required": ["network", "is_in"],
            "not": {"anyOf": [{"required": [one]} for one in ("validated", "is_method")]},
        },
    ]
}


class _ToolsOrNetwork(_Table):
    """The fields that keys and conditions share."""

    mcp_tool: Texts | None = None
    """Each of these tools of an MCP server, such as ["search", "export"]."""
    validated: bool = False
    """With mcp_tool: the server rejects requests whose header fields and body differ."""
    network: str | None = Field(default=None, min_length=1)
    """Each operator or country, from a file such as "GeoLite2-ASN.mmdb", relative to the directory of this one."""

    def tools(self) -> McpTool:
        """Return the key of the tools."""
        return mcp_tool(*self.mcp_tool or (), validated=self.validated)


class KeyTable(_ToolsOrNetwork):
    """The key of a rule: one of header, cookie, query, path_param, client, combine, mcp_tool and network."""

    model_config = ConfigDict(json_schema_extra=_ONE_SOURCE)

    header: str | None = None
    """Each value of a request header, such as "X-API-Key"."""
    cookie: str | None = None
    """Each value of a cookie."""
    query: str | None = None
    """Each value of a query parameter."""
    path_param: str | None = None
    """Each value of a parameter of the rule's path."""
    client: Made[Client] | None = None
    """Each client address, with its own options."""
    combine: list[Key] | None = Field(default=None, min_length=2)
    """Each combination of several keys, such as ["client", { header = "X-Tenant" }]."""
    fallback: Key | None = None
    """The key if the value is missing; by default the client."""
    by: Literal["asn", "country"] | None = None
    """With network: what to count by if the file has both; by default the operator."""

    def made(self, loader: ConfigLoader) -> keys.Key:
        """See `_Table.made`."""
        sources = {name: value for name, value in self.given.items() if name in _SOURCES}
        if len(sources) != 1:
            raise ConfigurationError(f"expected one of {', '.join(_SOURCES)}")
        ((source, value),) = sources.items()
        for option, those in _SOURCES_OF.items():
            if option in self.given and source not in those:
                why = f"{source} always finds a key" if option == "fallback" else f"requires {those[0]}"
                raise ConfigurationError(f"{why}; remove {option}", option)
        if source in _VALUES:
            return _VALUES[source](value, fallback=_unless_client(self.fallback))
        if source == "combine":
            return keys.combine(*(_unless_client(part) or loader.client for part in value))
        if source == "network":
            return key_by(loader.network_file(value), self.by)
        return self.tools() if source == "mcp_tool" else value


class ConditionTable(_ToolsOrNetwork):
    """What a rule asks of a request before it applies: is_in or is_method, of mcp_tool or network."""

    model_config = ConfigDict(json_schema_extra=_CONDITIONS)

    is_in: Annotated[list[str | int], Field(min_length=1)] | None = None
    """Some of the tools, such as ["export"]; or countries and operators of the network, such as ["NL", 64500]."""
    is_method: Texts | None = None
    """With mcp_tool: JSON-RPC methods, such as ["tools/list"]."""

    def made(self, loader: ConfigLoader) -> keys.KeyCondition:
        """See `_Table.made`."""
        if (self.mcp_tool is None) == (self.network is None):
            raise ConfigurationError("expected one of mcp_tool and network")
        if (self.is_in is None) == (self.is_method is None):
            raise ConfigurationError('expected is_in, for example is_in = ["NL"], or is_method, one of them')
        if self.network is not None:
            for option in ("validated", "is_method"):
                if option in self.given:
                    raise ConfigurationError(f"requires mcp_tool; remove {option}", option)
            place = key_by(loader.network_file(self.network))
            return place.is_in(*self.is_in or ())
        tools = self.tools()
        if self.is_method is not None:
            return tools.is_method(*self.is_method)
        return tools.is_in(*(str(name) for name in self.is_in or ()))


def _unless_client(key: Any) -> keys.Key | None:
    """Return a key as it is passed in code, where None means the client."""
    return None if key == "client" else key


def _exclude(schema: dict[str, Any]) -> None:
    """Add to the schema of a rule which of its keys exclude each other, and which require another one."""
    known = schema["properties"]

    def without(key: str) -> Any:
        return {"const": known[key]["default"]} if "default" in known[key] else False

    def present(key: str) -> dict[str, Any]:
        return {"required": [key], "properties": {key: {"not": without(key)} if without(key) else True}}

    schema["allOf"] = [
        {"if": present(key), "then": {"properties": {other: without(other) for other in others}}}
        for key, others, _ in EXCLUSIONS
    ] + [{"if": present(key), "then": present(needed)} for key, needed, _ in NEEDS]


class RuleTable(_Table):
    """A rule: which requests have which limits."""

    model_config = ConfigDict(json_schema_extra=_exclude)

    path: Paths
    """A path such as "/items/{id}" or "/api/{rest:path}", a list of paths that share their counts, or "*" for all."""
    limits: Limits | None = None
    """Limits such as "5/minute; 50/hour"."""
    concurrency: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The most simultaneous requests of a key."""
    methods: Texts | None = None
    """HTTP methods, such as ["GET", "POST"]; by default all."""
    connection: Literal["http", "websocket"] | None = None
    """The kind of requests; by default both."""
    key: Key = "client"
    """The key to count by, such as { header = "X-API-Key" }."""
    when: Made[ConditionTable] | None = None
    """A condition, such as { network = "GeoLite2-Country.mmdb", is_in = ["NL"] }."""
    cost: int = Field(default=1, ge=0)
    """Units for one request."""
    unit: str | None = None
    """What is counted if not requests, such as "tokens"."""
    count_if: Annotated[list[Annotated[int, Field(ge=100, le=599)]], Field(min_length=1)] | None = None
    """Count only requests whose response has one of these statuses, such as [401, 403]."""
    count_denied: bool = False
    """Count refused requests as well."""
    shadow: bool = False
    """Only report the requests that would have been refused."""
    block: bool = False
    """Refuse all matching requests; no later rule applies."""
    status: int | None = Field(default=None, ge=400, le=599)
    """With block = true: the status of the response; by default 403."""
    wait: str | None = None
    """How long a request may wait to be admitted, such as "200ms"."""
    wait_max: int = Field(default=16, ge=1, le=1000)
    """The most requests of one key that wait at a time."""
    fair: Key | None = None
    """Waiting requests share permits by this key, such as "user" or { header = "X-Tenant" }."""
    on_error: Literal["local", "allow", "deny"] | None = None
    """How the rule decides when the store fails; by default as the limiter does."""
    name: str | None = None
    """The name of the limit; rules of one name share their counts."""
    exempt: bool = False
    """Let matching requests pass uncounted; no later rule applies."""
    final: bool = False
    """No later rule applies to matching requests."""

    def made(self, loader: ConfigLoader) -> Rule:
        """See `_Table.made`."""
        options = self.given | {"key": _unless_client(self.key)}
        if self.fair == "client":
            options["fair"] = loader.client
        if self.count_if is not None:
            options["count_if"] = frozenset(self.count_if).__contains__
        return Rule(**options)


Weight: TypeAlias = Annotated[int, Field(ge=1, le=_MAX_WEIGHT)] | Literal["ban"]


class BanTable(_Table):
    """Bans abusive clients."""

    after: str = "20/10m"
    """The number of strikes, and the time within which they lead to a ban."""
    duration: str = "1h"
    """How long the first ban lasts."""
    factor: float = Field(default=4, ge=1, le=1_000)
    """How many times longer each further ban lasts."""
    longest: str | None = None
    """The longest ban; by default "7d" or duration, whichever is longer."""
    forgive: str = "24h"
    """The time without a strike after which the level falls by one."""
    signals: dict[str, Weight] = {"refused": 1}
    """Strikes and their weights: "refused", a status or class ("4xx") or a path; "ban" bans immediately."""
    key: BanKey = "client"
    """The key to ban, such as { header = "X-API-Key" }."""
    shadow: bool = False
    """Only report the keys that would have been banned."""
    status: Literal[403, 429] = 403
    """The status of the response to a banned client."""
    ban_private: bool = False
    """Whether private and loopback addresses can be banned."""

    def made(self, loader: ConfigLoader) -> dict[str, Any]:
        """Return the options of the policy, whose name is the key of this table."""
        return self.given | {"key": _unless_client(self.key)}


class MessageTable(_Table):
    """Limits for the messages of websockets."""

    limits: Limits
    """Limits such as "10/second"."""

    def made(self, loader: ConfigLoader) -> MessageLimits:
        """See `_Table.made`."""
        return MessageLimits(**self.given)


def _network_files(found: str | list[str], info: Any) -> list[NetworkFile]:
    return [info.context.network_file(name) for name in ([found] if isinstance(found, str) else found)]


class Configuration(_Table):
    """A configuration file of slidegate."""

    model_config = ConfigDict(title="slidegate.toml", json_schema_extra={"not": {"required": ["limits", "rules"]}})

    client: Annotated[Made[Client], AfterValidator(_combined_with)] | None = None
    """How the client's address is found, such as { trusted = ["10.0.0.0/8"] }."""
    limits: Limits | None = None
    """Limits for each client, instead of rules, such as "100/minute"."""
    rules: list[Made[RuleTable]] | None = None
    """Which requests have which limits; every matching rule applies."""
    default_limits: Limits | None = None
    """Limits for each route, in addition to limits or rules, such as "60/minute"."""
    blocklist: Lists | None = None
    """Networks that are refused, such as ["192.0.2.0/24"], or files of them, such as "blocked.netset"."""
    allowlist: Lists | None = None
    """Networks that are neither refused nor counted, or files of them, such as "office.netset"."""
    bans: dict[str, Made[BanTable]] = {}
    """Ban policies by name, such as { scanning = { after = "20/10m" } }."""
    store: str | Environment | None = None
    """The address of the store, such as "memory://"."""
    deadline: str = "50ms"
    """How long a store may take to answer a request."""
    on_error: Literal["local", "allow", "deny"] = "local"
    """How requests are decided when the store does not answer; "local" counts in this process."""
    networks: Annotated[Paths, AfterValidator(_network_files)] = []
    """Files that identify operators for bans such as "asn:64500": ["GeoLite2-ASN.mmdb"]."""
    headers: Literal["draft", "legacy", "none"] | list[Literal["draft", "legacy"]] = "draft"
    """Which RateLimit header fields are sent."""
    messages: Made[MessageTable] | None = None
    """The limits of messages over a websocket."""
    enabled: bool = True
    """False: every request passes."""
    ignore_checks: list[str] = []
    """Codes of start-up findings that are not reported, such as ["SG103"]."""


class _Generator(GenerateJsonSchema):
    """Omits null, which TOML does not have, and titles, because the names of keys suffice."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def nullable_schema(self, schema: NullableSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> dict[str, Any]:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    schema = Configuration.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema}
