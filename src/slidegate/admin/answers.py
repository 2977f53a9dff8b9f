"""The answers of the admin API as JSON schemas: they are the components of its OpenAPI document."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_NUMBER: Final[Schema] = {"type": "number"}
_FLAG: Final[Schema] = {"type": "boolean"}


def _or_null(schema: Schema) -> Schema:
    if "type" in schema and set(schema) == {"type"}:
        return {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _by_name(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def of(name: str) -> Schema:
    """Return a reference to one of the `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_WORKERS: Final = _list(of("Worker"))
_LIMIT: Final = _object(
    text=_TEXT,
    amount=_WHOLE,
    window_s=_or_null(_NUMBER),
    resolution=_or_null(_WHOLE),
    kind={"enum": ["window", "quota", "concurrency"]},
)
_WINDOW: Final[dict[str, Schema]] = {
    "rule": _TEXT,
    "limit": _TEXT,
    "kind": {"enum": ["window", "quota", "concurrency"]},
    "amount": _WHOLE,
    "used": _WHOLE,
    "remaining": _WHOLE,
    "retry_after_s": _or_null(_NUMBER),
    "more_after_s": _or_null(_NUMBER),
    "reset_after_s": _or_null(_NUMBER),
}
_LISTED: Final = _object(
    kind={"enum": ["blocklist", "allowlist"]},
    gate=_TEXT,
    name=_TEXT,
    path=_or_null(_TEXT),
    entries=_WHOLE,
    changed_at=_or_null(_NUMBER),
    status={"enum": ["loaded", "rejected", "fixed"]},
    message=_TEXT,
)
_RULE: Final = _object(
    name=_TEXT,
    identity=_TEXT,
    paths=_list(_TEXT),
    methods=_or_null(_list(_TEXT)),
    connection=_or_null(_TEXT),
    limits=_list(of("Limit")),
    by_request=_FLAG,
    key=_TEXT,
    cost=_or_null(_WHOLE),
    action=_TEXT,
    exempt=_FLAG,
    final=_FLAG,
    status=_or_null(_WHOLE),
    conditional=_FLAG,
    count_denied=_FLAG,
    wait_s=_NUMBER,
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Traffic": _object(
        passed=_WHOLE,
        refused=_WHOLE,
        shadow_refused=_WHOLE,
        banned=_WHOLE,
        blocked=_WHOLE,
        exceptions=_WHOLE,
        qps=_NUMBER,
        p50_ms=_or_null(_NUMBER),
        p95_ms=_or_null(_NUMBER),
        p99_ms=_or_null(_NUMBER),
    ),
    "Worker": _object(name=_TEXT, host=_TEXT, pid=_WHOLE, age_s=_NUMBER, published_at=_NUMBER),
    "Stats": _object(
        window_s=_NUMBER,
        workers=_WORKERS,
        total=of("Traffic"),
        rules=_by_name(of("Traffic")),
        routes=_by_name(of("Traffic")),
    ),
    "History": _object(
        window_s=_NUMBER,
        step_s=_NUMBER,
        start_at=_NUMBER,
        passed=_list(_WHOLE),
        refused=_list(_WHOLE),
        banned=_list(_WHOLE),
        shadow_refused=_list(_WHOLE),
        p50_ms=_list(_or_null(_NUMBER)),
        p95_ms=_list(_or_null(_NUMBER)),
    ),
    "Limit": _LIMIT,
    "Rule": _RULE,
    "Policy": _object(
        name=_TEXT,
        after=_TEXT,
        duration_s=_NUMBER,
        factor=_NUMBER,
        longest_s=_NUMBER,
        action=_TEXT,
        answer=_TEXT,
        signals=_by_name(_TEXT),
        key=_TEXT,
    ),
    "List": _LISTED,
    "Rules": _object(
        gates=_list(
            _object(
                name=_TEXT,
                rules=_list(of("Rule")),
                endpoints=_list(of("Rule")),
                default_limits=_list(_TEXT),
                policies=_list(of("Policy")),
                lists=_list(of("List")),
            )
        )
    ),
    "Clients": _object(
        window_s=_NUMBER,
        clients=_list(
            _object(
                key=_TEXT,
                requests=_WHOLE,
                refused=_WHOLE,
                nearest=_or_null(_object(rule=_TEXT, limit=_TEXT, used=_WHOLE, amount=_WHOLE, share=_NUMBER)),
                banned=_FLAG,
            )
        ),
        next=_or_null(_TEXT),
    ),
    "Window": _object(**_WINDOW, slices=_list(_object(start_at=_NUMBER, end_at=_NUMBER, count=_WHOLE))),
    "WindowNow": _object(**_WINDOW),
    "Refusal": _object(
        at=_NUMBER,
        key=_TEXT,
        client=_TEXT,
        rule=_TEXT,
        limit=_or_null(_TEXT),
        reason=_TEXT,
        route=_or_null(_TEXT),
        method=_or_null(_TEXT),
        status=_or_null(_WHOLE),
        retry_after_s=_or_null(_NUMBER),
        worker=_TEXT,
    ),
    "Ban": _object(target=_TEXT, reason=_TEXT, policy=_TEXT, since_at=_NUMBER, until_at=_or_null(_NUMBER), rung=_WHOLE),
    "Standing": _object(
        policy=_TEXT,
        target=_TEXT,
        strikes=_WHOLE,
        needed=_or_null(_WHOLE),
        rung=_WHOLE,
        clean_since_at=_NUMBER,
        clean_until_at=_or_null(_NUMBER),
    ),
    "Client": _object(
        key=_TEXT,
        ban=_or_null(of("Ban")),
        strikes=_list(of("Standing")),
        history=_list(_object(kind={"enum": ["banned", "unbanned"]}, at=_NUMBER, by=_TEXT, reason=_TEXT)),
        windows=_list(of("Window")),
        refusals=_list(of("Refusal")),
    ),
    "Refusals": _object(refusals=_list(of("Refusal"))),
    "Shadow": _object(
        window_s=_NUMBER,
        clients_window_s=_NUMBER,
        rules=_list(
            _object(
                name=_TEXT,
                limits=_list(_TEXT),
                passed=_WHOLE,
                would_refuse=_WHOLE,
                share=_NUMBER,
                clients=_list(_object(key=_TEXT, count=_WHOLE)),
            )
        ),
    ),
    "Bans": _object(bans=_list(of("Ban")), next=_or_null(_TEXT), total=_WHOLE),
    "Lists": _object(lists=_list(of("List"))),
    "Events": _object(
        events=_list(_object(seq=_TEXT, at=_NUMBER, kind=_TEXT, message=_TEXT, details=_by_name(_TEXT), worker=_TEXT)),
        next=_TEXT,
    ),
    "Config": _object(
        version=_TEXT,
        python=_TEXT,
        compiled=_FLAG,
        store=_TEXT,
        per_process=_FLAG,
        deadline_s=_or_null(_NUMBER),
        on_error=_or_null(_TEXT),
        gates=_list(_object(name=_TEXT, rules=_WHOLE)),
        findings=_list(_object(code=_TEXT, message=_TEXT, gate=_TEXT)),
        workers=_WORKERS,
    ),
    "Lifted": _object(target=_TEXT),
    "Reset": _object(key=_TEXT, forgotten=_FLAG),
    "Charged": _object(key=_TEXT, windows=_list(of("WindowNow"))),
    "Key": _object(key=_TEXT),
    "Problem": {
        "type": "object",
        "properties": {
            "type": _TEXT,
            "title": _TEXT,
            "status": _WHOLE,
            "detail": _TEXT,
            "errors": _list(_object(field=_TEXT, message=_TEXT)),
        },
        "required": ["type", "title", "status", "detail"],
    },
}
"""Every schema, by its name."""
