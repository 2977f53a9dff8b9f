"""OpenAPI: which limits each operation of a FastAPI application has, and what a refused request gets.

Limits come from the middlewares, operations from the routes. The stack of an application is only built when its
document is made, and not kept, so that middlewares can still be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.routing import PARAM_REGEX

from ..core.errors import ConfigurationError, quoted
from ..core.exceeded import RateLimitExceeded
from ..limiter.named_limits import text_of_limit
from ..web.endpoints import rate_limit_exceeded
from ..web.published import kind_of_key
from ..web.routes import mounted_routes
from .operations import Around, Guard, Limit, applications, guards_in, limits_of

__all__ = ["document_limits"]


Json: TypeAlias = dict[str, Any]


def _field(description: str, kind: str) -> Json:
    return {"description": description, "schema": {"type": kind}}


_TEXT: Final = {"type": "string"}
_PROBLEM: Final = {
    "application/problem+json": {
        "schema": {
            "type": "object",
            "properties": {
                "type": _TEXT,
                "title": _TEXT,
                "status": {"type": "integer"},
                "detail": _TEXT,
                "violated-policies": {"type": "array", "items": _TEXT},
            },
            "required": ["type", "title", "status", "detail"],
        }
    }
}
"""The default answer of a middleware."""
_DETAIL: Final = {
    "application/json": {"schema": {"type": "object", "properties": {"detail": _TEXT}, "required": ["detail"]}}
}
"""The default answer of FastAPI."""
_RETRY_AFTER: Final = _field("Seconds until a request is admitted again; absent if none will be.", "integer")
_FIELDS: Final[dict[Any, Json]] = {
    "draft": {
        "RateLimit": _field("For each limit, what remains of it, and the seconds until more remains.", "string"),
        "RateLimit-Policy": _field("The limits of this request.", "string"),
    },
    "legacy": {
        "X-RateLimit-Limit": _field("The amount of the limit that admits the fewest further requests.", "integer"),
        "X-RateLimit-Remaining": _field("What remains of it.", "integer"),
        "X-RateLimit-Reset": _field("When it is whole again, in Unix seconds.", "integer"),
    },
    None: {},
}
"""The header fields of each style."""
_DESCRIPTIONS: Final = {
    "403": "Banned, or on a blocklist",
    "429": "Too many requests",
    "503": "Requests cannot be counted now",
}


def document_limits(app: Any, *, response: Any = None, names: bool = False, keys: bool = False) -> None:
    """Add the limits of each operation to the OpenAPI document of a FastAPI application.

    An operation to which a limit applies gets a 429, and ``x-ratelimit`` with these limits as they are configured. It
    gets a 403 if a ban policy or a blocklist may refuse it, and a 503 if ``on_error="deny"`` may. Responses that the
    application describes itself stay as they are. Rules that block, shadow rules and honeypots are not published.

    Call it when the application is complete: FastAPI applications that are mounted by then are documented too, each
    in its own document. A document is made once; ``app.openapi_schema = None`` makes it again, for example after a
    configuration file has changed.

    Args:
        app: The application.
        response: The pydantic model of what `on_refused`, or an exception handler of your own, answers. Without it
            such a response has no body in the document.
        names: Whether to publish the names of rules.
        keys: Whether to publish what limits count by: ``address``, ``header:x-api-key``.

    Raises:
        ConfigurationError: `app` is no FastAPI application, and contains none.
    """
    documented = [*applications(app)]
    if not documented:
        raise ConfigurationError(f"document_limits: expected a FastAPI application, not {quoted(app)}", "app")
    content: Json = {}
    schemas: Json = {}
    if response is not None:
        schema = response.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = schema.pop("$defs", {})
        content = {"application/json": {"schema": schema}}
    for around in documented:
        application = around[-1].app
        generate = application.openapi
        if isinstance(generate, _LimitedDocument):
            # Of two calls, for it and for one in which it is mounted, the latter knows what is around it.
            around = max(around, generate.around, key=len)
            generate = generate.generate
        application.openapi = _LimitedDocument(around, generate, content, schemas, names, keys)


@dataclass(eq=False)
class _LimitedDocument:
    """The `openapi` of an application that adds its limits to its document, see `document_limits`.

    Attributes:
        around: The layers around the application, from the outside in and itself included.
        generate: Its own `openapi`.
        content: What `on_refused` and handlers of the application's own answer.
        schemas: The schemas to which that refers.
        names: Whether to publish the names of rules.
        keys: Whether to publish what limits count by.
        described: The latest document that has its limits.
    """

    around: Around
    generate: Callable[[], Any]
    content: Json
    schemas: Json
    names: bool
    keys: bool
    described: object = None

    def __call__(self) -> Any:
        document = self.generate()
        if document is self.described:
            return document
        if self.schemas:
            document.setdefault("components", {}).setdefault("schemas", {}).update(self.schemas)
        application = self.around[-1]
        guards = [*guards_in(self.around)]
        for route in mounted_routes(application.app, application.path):
            path = PARAM_REGEX.sub(r"{\1}", route.path.removeprefix(application.path))
            operations = document["paths"].get(path, {})
            for method in route.methods or ():
                if method.lower() in operations:
                    self._describe(operations[method.lower()], guards, [*limits_of(guards, route, method)])
        self.described = document  # last: what has failed midway is described again
        return document

    def _describe(self, operation: Json, guards: Sequence[Guard], limits: Sequence[Limit]) -> None:
        """Add limits, and the responses of refusals, to what a document says of an operation."""
        responses = operation["responses"]
        documented_statuses = {*responses}
        for status, content in self._refusals(guards, limits):
            if status in documented_statuses:
                continue
            response = responses.setdefault(
                status,
                {"description": _DESCRIPTIONS[status], "headers": {"Retry-After": _RETRY_AFTER}, "content": {}},
            )
            response["content"].update(content)
            if status == "429":
                for guard in guards:
                    for style in guard.middleware.policy.headers.styles:
                        response["headers"].update(_FIELDS[style])
        if limits:
            operation["x-ratelimit"] = [self._published(limit) for limit in limits]

    def _refusals(self, guards: Sequence[Guard], limits: Sequence[Limit]) -> Iterator[tuple[str, Json]]:
        """Yield the status and the content of each answer that middlewares and limits may give."""
        for guard in guards:
            policy = guard.middleware.policy
            if policy.lists["blocklist"] is not None:
                yield "403", self._content(guard)
            for ban_policy in policy.signals.ban_policies.values():
                if not ban_policy.shadow:
                    yield str(ban_policy.status), self._content(guard)
        handlers = self.around[-1].app.exception_handlers
        for limit in limits:
            handler = rate_limit_exceeded
            if limit.is_at_endpoint:  # the application answers
                handler = handlers.get(429) or handlers.get(RateLimitExceeded) or handlers[HTTPException]
            content = self._content(limit.guard, handler)
            yield "429", content
            on_error = limit.guard.middleware.limiter.on_error  # None where the store cannot fail
            if on_error is not None and (limit.rule.on_error or on_error) == "deny":
                yield "503", content

    def _content(self, guard: Guard, handler: Any = rate_limit_exceeded) -> Json:
        """Return what an exception handler answers; by default what a middleware answers itself."""
        if handler.__module__ == "fastapi.exception_handlers":
            return _DETAIL
        if handler is rate_limit_exceeded and guard.middleware.policy.refusals.on_refused is None:
            return _PROBLEM
        return self.content

    def _published(self, limit: Limit) -> Json:
        """Return what is published of a limit."""
        rule = limit.rule
        published: Json = {"limits": [text_of_limit(each) for each in rule.all_limits]}
        if rule.limits_function is not None:  # the others apply only if it fails
            published = {"limits": [], "by_request": True}
        if rule.unit is not None:
            published["unit"] = rule.unit
        if limit.is_partial or rule.when is not None:
            published["conditional"] = True
        if self.names and rule.name is not None:
            published["name"] = rule.name
        if self.keys:
            published["key"] = kind_of_key(rule.key)
        return published
