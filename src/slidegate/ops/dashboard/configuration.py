"""The tables of the view of the configuration: limits, the rules of all workers, and those of this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from . import cells
from .cells import Act, Head, Row, Table, text_or_nothing
from .charts import NOTHING
from .tables import MAX_RULES, Rows
from .texts import count, key_name, moment, plain, rate, span

_DOES: Final = {"exempt": "exempts", "block": "blocks", "shadow": "reports only", "limit": "limits"}
_ALLOWLIST: Final = "allowlist"
_SIDE_BY_SIDE: Final = 2
"""So many groups of workers are side by side on a phone."""


def limits(found: Rows) -> Table:
    """Return the limits in force."""
    heads = [Head("Limit"), Head("Rule", "wide"), Head("In force", "long"), Head("Configured", "wide")]
    rows = []
    for one in found:
        name, key = cells.key(one["name"], 64), f"{one['name']} {one['configured']} {one['rule']}"
        if one["shadow"]:
            name = cells.badge(name, "Shadow")
            key += " shadow"
        in_force: cells.Value = one["limit"]
        acts = []
        if one["changeable"]:
            acts.append(Act("change", "Change", "name", one["name"], one["amount"]))
        change = one["change"]
        if change:
            in_force = _changed(one["limit"], change)
            acts.append(Act("restore", "Restore", "name", one["name"]))
        row = [name, text_or_nothing(one["rule"], 60), in_force, text_or_nothing(one["configured"])]
        rows.append(Row(row, key, acts))
    return Table("Limits", heads, rows, "No rule has a limit.", acts=True)


def _changed(limit: str, change: Mapping[str, Any]) -> Markup:
    """Return a limit that somebody has changed."""
    said = Markup('<strong class="warm">{}</strong> <small>until {} by {}: {}</small>')
    reason = text_or_nothing(change["reason"], 256)
    return said.format(limit, moment(change["until_at"]), plain(change["by"], 64), reason)


def published(found: Mapping[str, Any]) -> Table:
    """Return what each group of equal workers enforces; what differs comes first."""
    heads = [Head("Rule")]
    for group in found["groups"]:
        heads.append(Head(_group(group), "long"))
    differing = [one for one in found["rules"] if one["differs"]]
    alike = [one for one in found["rules"] if not one["differs"]]
    rows = []
    for one in [*differing, *alike][:MAX_RULES]:
        name = cells.key(one["name"] or one["rule"], 64)
        if one["middleware"]:
            name = cells.small(name, one["middleware"], 40)
        if one["differs"]:
            name = cells.badge(name, "Differs", is_hot=True)
        texts = [text_or_nothing(text, 160) for text in one["by_group"]]
        rows.append(Row([name, *texts], f"{one['middleware']} {one['rule']} {one['name']}"))
    note = "within a minute"
    if len(found["groups"]) > 1:
        note = "all the same"
        if differing:
            note = f"{count(len(differing))} differ"
    empty = "No worker has published its rules within a minute."
    kind = ""
    if len(found["groups"]) > _SIDE_BY_SIDE:
        kind = "stack"
    return Table("Rules of all workers", heads, rows, empty, note, kind)


def _group(group: Mapping[str, Any]) -> str:
    title = f"{group['workers']} workers"
    if group["workers"] == 1:
        title = "1 worker"
    if not group["is_readable"]:
        title += ", not readable"
    if not group["same_secret"]:
        title += ", another secret"
    return title


def middleware_tables(name: str, middleware: Any) -> list[Table]:
    """Return the rules, ban policies and lists of a middleware of this process."""
    tables = [_rules(name, middleware)]
    if middleware.ban_policies:
        tables.append(_policies(name, middleware.ban_policies))
    lists = [(kind, listed) for kind, listed in middleware.lists.items() if listed]
    if lists:
        tables.append(_lists(name, lists))
    return tables


def _rules(name: str, middleware: Any) -> Table:
    heads = [
        Head("Rule"),
        Head("Paths", "long"),
        Head("Limits", "wide"),
        Head("Counted by", "wide"),
        Head("Does", "word"),
    ]
    rows = []
    for rule in middleware.rules[:MAX_RULES]:
        title = cells.tone("soft", "unnamed")
        if rule.name:
            title = cells.key(rule.name, 60)
        paths = cells.small(
            cells.key(" ".join(rule.matching.paths), 160), " ".join(sorted(rule.matching.methods or ()))
        )
        counted_by = NOTHING
        if not rule.action.exempts:
            counted_by = key_name(rule.charging.key)
        rows.append(Row([title, paths, limits_of(rule), counted_by, _does(rule)]))
    note = ""
    if middleware.file:
        note = plain(middleware.file, 120)
    if middleware.default_rule:
        note = f"{note} each route by itself: {limits_of(middleware.default_rule)}".strip()
    return Table(f"{name}: rules", heads, rows, "It has no rules.", note)


def limits_of(rule: Any) -> str:
    """Return the limits of a rule as configured."""
    if rule.charging.limits_function:
        return "by a function"
    return text_or_nothing("; ".join(map(str, rule.charging.all_limits)), 160)


def _does(rule: Any) -> str:
    kind = rule.action.kind
    text = _DOES[kind]
    if rule.matching.when:
        text += ", if a condition holds"
    if kind == "limit" and rule.action.is_final:
        text += ", ends the list"
    if rule.charging.wait_us:
        text += ", lets requests wait"
    return text


def _policies(name: str, policies: Iterable[Any]) -> Table:
    heads = [
        Head("Policy"),
        Head("After"),
        Head("First ban"),
        Head("Factor", "n wide"),
        Head("Longest", "wide"),
        Head("Does"),
    ]
    rows = []
    for one in policies:
        does = "bans"
        if one.shadow:
            does = "reports only"
        spans = span(one.duration_us / 1_000_000), rate(one.factor), span(one.longest_us / 1_000_000)
        rows.append(Row([cells.key(one.name, 60), str(one.after), *spans, does]))
    return Table(f"{name}: ban policies", heads, rows)


def _lists(name: str, lists: Iterable[tuple[str, Any]]) -> Table:
    heads = [Head("List"), Head("Does"), Head("Networks", "n"), Head("File", "long wide")]
    rows = []
    for kind, listed in lists:
        does, title, path = "blocks", kind, NOTHING
        if kind == _ALLOWLIST:
            does = "allows"
        if listed.file:
            title, path = listed.file.name, plain(listed.file.path, 200)
        rows.append(Row([plain(title, 60), does, count(len(listed)), path]))
    return Table(f"{name}: lists", heads, rows)


def workers(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the workers that have written statistics."""
    heads = [Head("Worker", "long"), Head("Host", "wide"), Head("Process", "n wide"), Head("Statistics")]
    rows = []
    for one in found:
        texts = plain(one["host"], 60), str(one["pid"]), f"{span(one['age_s'])} old"
        rows.append(Row([cells.key(one["name"], 80), *texts], one["name"]))
    return Table("Workers", heads, rows, "No worker has written statistics yet.")
