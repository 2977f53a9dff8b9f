"""Whatever has happened, every figure and sentence of page, API and command is true of what was decided.

What an observer of the tests writes down of an incident is counted here, apart from the code of the tools.
"""

import asyncio
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slidegate import Limiter
from slidegate import _watcher as watcher
from slidegate.ops.cli import check, main, run  # noqa: F401  the first import of check keeps the real `main.ask`
from slidegate.testing import limits_clock

from ..asgi import call
from ..web.middlewares import FollowedFiles
from .incidents import MINUTE_US, Decided, Incident

NONE = "\u2013"


class Truth:
    """What was decided in the last five full minutes and the running one.

    Attributes:
        is_cut: Whether there are more clients than a worker lists of a minute.
        banned: The clients and keys that are banned by now.
    """

    def __init__(self, decided: list[Decided]) -> None:
        self.all, self.refused = decided, [one for one in decided if one.is_refused]
        self.passed = [one for one in decided if one.outcome.refusal is None]
        self.reasons = Counter(one.reason for one in decided if one.outcome.refusal is not None)
        self.clients, self.keys = defaultdict[str, list[Decided]](list), defaultdict[str, list[Decided]](list)
        for one in decided:
            self.clients[one.client].append(one)
            for key in one.keys:
                self.keys[key].append(one)
        self.is_cut = len(self.clients) > 100
        self.banned = set[str]()
        self.limited = len(self.refused) - self.reasons["banned"] - self.reasons["blocked"]

    async def look_up_bans(self, limiter: Limiter) -> None:
        for key in (*self.clients, *self.keys):
            if await limiter.banned(key) is not None:
                self.banned.add(key)

    def of_rule(self, rule: str) -> list[Decided]:
        return [one for one in self.all if rule in one.by]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def numbers(text: str) -> list[int]:
    return [*map(number, re.findall(r"\d[\d,]*", text))]


def unix_of(text: str) -> int:
    return int(datetime.fromisoformat(f"{text.removesuffix('Z')}+00:00").timestamp())


def share(part: int, whole: int) -> str:
    if not whole:
        return NONE
    return "< 0.01 %" if 0 < part < whole / 10_000 else f"{100 * part / whole:.3g} %"


def answers(decided: Iterable[Decided]) -> str:
    statuses = Counter(one.outcome.status for one in decided)
    names = Counter[str]()
    for status, times in statuses.items():
        names[str(status) if status in (401, 403, 404, 429) else f"{status // 100}xx"] += times
    return ", ".join(f"{name} {names[name]:,}" for name in sorted(names))


def most(labels: Counter[str]) -> set[str]:
    return {name for name, times in labels.items() if times == max(labels.values())}


def table(lines: list[str], caption: str, head: str) -> list[list[str]]:
    """Return the cells of a table of a page; none if it has no such table."""
    rows, is_below = list[list[str]](), False
    for above, line in pairwise(lines):
        if line.startswith(head) and above.startswith(caption):
            is_below = True
        elif is_below and " | " in line:
            rows.append([cell.strip() for cell in line.split(" | ")])
        elif is_below and not line.startswith("[do="):
            break
    return rows


def check_line(line: str, truth: Truth) -> None:
    """Check the line on top: its numbers are of clients that are listed, it says how much is not, and adds up."""
    refused = Counter(one.client for one in truth.refused)
    banned = refused.keys() & truth.banned
    of_banned = sum(refused[client] for client in banned)
    whole, left, total = len(truth.refused) - of_banned, refused.keys() - banned, 0
    for part in re.split(r"; |\. This worker alone: .*|\.$", line):
        if said := re.fullmatch(r"Clients refused: (at least )?(\S+), (\S+) times, most by (.*)", part):
            assert number(said[2]) <= len(left) if said[1] else number(said[2]) == len(left), part
            by = Counter(rule for one in truth.refused if one.client in left for rule in one.by)
            assert number(said[3]) <= whole, part
            assert truth.is_cut or said[4] in most(by), (part, by)
            total += number(said[3])
        elif said := re.fullmatch(r"(\S+) has (.*) of (\S+) refusals", part):
            assert number(said[3]) <= whole < 2 * refused[said[1]], part
            assert truth.is_cut or said[2] == share(refused[said[1]], whole), part
            total += number(said[3])
        elif said := re.fullmatch(r"Banned clients: (at least )?(\S+), refused (\S+) times", part):
            assert number(said[2]) <= len(banned) if said[1] else number(said[2]) == len(banned), part
            assert number(said[3]) <= of_banned, part
            total += number(said[3])
        elif said := re.fullmatch(r"Not listed: (\S+) refusals", part):
            assert truth.is_cut
            total += number(said[1])
        elif part.startswith("Nobody was refused"):
            assert not truth.refused
        else:
            assert not part or part.startswith(("look first: ", "Limits are off", "A middleware of this worker")), part
    assert total == len(truth.refused) or line.startswith(("Limits are off", "A middleware of this worker"))


def check_rows(rows: list[list[str]], truth: Truth, of: dict[str, list[Decided]]) -> None:
    """Check rows of clients or keys: the name, what refused or else counted it most, its requests, the refused ones."""
    for name, by, requests, refused, *_ in rows:
        key = re.sub(r" (Banned|Look first)$", "", name)
        assert name.endswith(" Banned") == (key in truth.banned), name
        own, gone = of[key], [one for one in of[key] if one.is_refused]
        if truth.is_cut:
            assert (number(requests) <= len(own), number(refused) <= len(gone)) == (True, True), name
            continue
        assert [number(requests), number(refused)] == [len(own), len(gone)], name
        rules = Counter(
            rule
            for one in gone or own
            if one.outcome.refusal is None or gone
            for rule in (one.by if of is truth.clients else one.keys[key])
        )
        (rule,) = [rule for rule in most(rules) or [NONE] if by == rule or by.startswith(f"{rule} ")]
        limits = by.removeprefix(rule).split("; ")
        assert {limit.strip() for limit in limits} <= {"", *(limit for one in own for limit in one.limits)}, (name, by)


def check_now(lines: list[str], truth: Truth) -> None:
    """Check the first page."""
    check_line(lines[0], truth)
    rows = table(lines, "Refused most", "Client |")
    check_rows(rows[:-1], truth, truth.clients)
    whole = len([one for one in truth.refused if one.client not in truth.banned])
    for name, _, _, refused, part in rows[:-1]:
        assert truth.is_cut or part == (NONE if name.endswith(" Banned") else share(number(refused), whole)), name
    assert not rows or (numbers(rows[-1][-1])[-1] <= whole if truth.is_cut else numbers(rows[-1][-1])[-1] == whole)
    tiles = dict(line.split(": ", 1) for line in lines if ": " in line and " | " not in line)
    assert tiles["Requests"].startswith(f"{len(truth.all):,} ")
    assert tiles["Passed"] == f"{len(truth.passed):,} {share(len(truth.passed), len(truth.all))}"
    assert tiles["Limited"] == f"{truth.limited:,} {share(truth.limited, len(truth.all))}"
    assert numbers(tiles["By bans"]) == [truth.reasons["banned"], truth.reasons["blocked"]]
    assert numbers(tiles.get("Unavailable", "0"))[0] == truth.reasons["unavailable"]
    shadows = [sum(len(one.outcome.shadow_rules) for one in truth.all)]
    shadows.append(sum(len(one.outcome.observing_rules) for one in truth.all))
    assert numbers(tiles.get("In shadow", "0 0")) == shadows
    assert numbers(tiles["Exceptions"])[0] == sum(one.outcome.failed for one in truth.all)
    assert tiles["2xx answers"].endswith(answers(truth.all))
    rules = table(lines, "Rules", "Rule |")
    for rule, *said in rules:
        own = truth.of_rule(rule)
        gone = [one for one in own if one.is_refused]
        counted = sum(rule in one.outcome.observing_rules for one in truth.all)
        would = sum(rule in one.outcome.shadow_rules for one in truth.all)
        assert number(said[0]) == sum(one.outcome.refusal is None for one in own), rule
        assert number(said[1]) == sum(one.reason != "blocked" for one in gone), rule
        assert said[2] == share(len(gone), len(own)), rule
        assert numbers(said[3]) == ([would, counted] if counted else [0]), rule
    assert {row[0] for row in rules} == {
        rule for one in truth.all for rule in (*one.outcome.rules, *one.outcome.observing_rules)
    }
    routes = table(lines, "Routes", "Route |")
    for route, passed, refused, statuses, *_ in routes:
        own = [one for one in truth.all if one.outcome.route == route]
        own = [one for one in own if one.outcome.refusal is None or route != "(no route)"]
        assert number(passed) == sum(one.outcome.refusal is None for one in own), route
        assert number(refused) == sum(one.is_refused for one in own), route
        assert statuses == answers(own), route
    assert {one.outcome.route for one in truth.passed} <= {row[0] for row in routes}


async def check_clients(incident: Incident, truth: Truth) -> None:
    """Check the clients and keys, and those of each rule and route."""
    lines = await incident.page("clients")
    for caption, head, of in (("Clients", "Client |", truth.clients), ("Other keys", "Key |", truth.keys)):
        rows = table(lines, caption, head)
        check_rows(rows, truth, of)
        refused = {key for key in of for one in of[key] if one.is_refused}
        assert truth.is_cut or len(refused) > 24 or refused <= {row[0].split(" ")[0] for row in rows}
        assert bool(rows) == bool(of), caption
    for rule in {rule for one in truth.all for rule in one.by}:
        lines = await incident.page("", rule=rule)
        for caption, head, of in (("Clients", "Client |", truth.clients), ("Keys", "Key |", truth.keys)):
            rows = table(lines, caption, head)
            for key, passed, gone in rows:
                own = [one for one in of[key] if rule in (one.by if of is truth.clients else one.keys[key])]
                expected = [sum(one.outcome.refusal is None for one in own), sum(one.is_refused for one in own)]
                # Of each, the first eight rules are counted.
                is_cut = truth.is_cut or len({rule for one in of[key] for rule in one.by}) > 8
                assert is_cut or [number(passed), number(gone)] == expected, (rule, key)
            assert ("no more than 50 are shown" in " ".join(lines)) >= (len(rows) == 50)
            if len(truth.clients) < 50 and of is truth.clients:
                assert {row[0] for row in rows} == {one.client for one in truth.of_rule(rule)}, rule
    for route in {one.outcome.route for one in truth.passed}:
        for key, passed in table(await incident.page("", route=route), "Clients", "Client |"):
            expected_here = sum(one.outcome.route == route for one in truth.clients[key] if one in truth.passed)
            assert number(passed) == expected_here or truth.is_cut, (route, key)


async def check_changes(incident: Incident) -> None:
    """Check bans and changes in page and API against the store."""
    limiter, lines = incident.workers[0].limiter, await incident.page("bans")
    bans = [ban async for ban in limiter.bans()]
    rows = table(lines, "Active bans", "Client |")
    said = {
        (key, by, unix_of(since), None if "lifted" in until else unix_of(until))
        for key, _, by, _, since, until, *_ in rows
    }
    expected = {
        (ban.key, ban.by, ban.since_us // 1_000_000, ban.until_us and ban.until_us // 1_000_000) for ban in bans
    }
    assert said == expected if len(bans) <= 50 else said < expected
    assert (await incident.api("bans"))["total"] == len(bans)
    assert not bans or f"Active bans {len(bans):,}" in " ".join(lines)
    happened = table(lines, "What happened", "When |")
    assert [row[0] for row in happened] == sorted((row[0] for row in happened), reverse=True)
    done = defaultdict[str, list[tuple[int, str]]](list)
    for action in await limiter.history():
        done[f"{action.kind} by hand"].append((action.at_us // 1_000_000, action.by))
    reloads = [row for row in happened if row[1] == "config reloaded"][::-1]
    assert [unix_of(row[0]) for row in reloads] == incident.reloads
    for number, row in enumerate(reloads, 40):
        assert re.search(rf"changes: 2, -.*'{number}/hour'.*\+.*'{number + 1}/hour'", row[2]), row
        assert len(row[-1].split(", ")) == len(incident.workers)
    for kind, actions in done.items():
        own = [row for row in happened if row[1] == kind]
        if len(actions) < 10:
            assert [(unix_of(row[0]), row[-1].removeprefix("| ")) for row in own] == actions
        else:
            assert [f"{len(actions)} times" in " ".join(row) for row in own] == [True], own
    changes, answer = await limiter.overrides(), await incident.api("limits")
    assert [(one["name"], one["limit"], one["by"]) for one in answer["changes"]] == [one[:3] for one in changes]
    lines = await incident.page("configuration")
    assert [row[:2] for row in table(lines, "Changes in force", "Limit |")] == [[*one[:2]] for one in changes]


def check_buttons(buttons: str, summary: Any, truth: Truth, incident: Incident) -> None:
    """Check why to look at a client first, and that Ban is offered of one address, alone, with nearly all refusals."""
    whole, may_ban = len([one for one in truth.refused if one.client not in truth.banned]), False
    for row in (rows := summary["refusals"]["rows"]):
        own, rule = truth.clients[row["key"]], row["rule"]
        keys = {key for one in own for decision in one.outcome.decisions for _, key, _ in decision.checks}
        people = [key for key in keys if key.startswith(("header:", "query:", "tenant:"))]
        ago_min = incident.clock.now_us // MINUTE_US - incident.last_refused_min(row["key"])
        reasons = {
            f"its last listed refusals are about {ago_min} min old": ago_min > 1,
            "no limit has refused it most": rule in ("blocklist", "old", "closed") or rule.startswith("ban by "),
            "it has spent a quota": rule == "exports",
            f"{rule} counts all clients together": rule in ("all exports", "filed"),
            "several users, cookies or API keys came from it": len(people) >= 3,
            "all addresses of this network are counted together": row["key"].endswith("/28"),
        }
        true = [text for text, holds in reasons.items() if holds] or [""]
        is_told = row["caution"] in ("", *true) or "min old" in row["caution"]
        assert row["caution"] == true[0] or (truth.is_cut and is_told), row
        gone = sum(one.is_refused for one in own)
        assert row["refused"] == gone or truth.is_cut
        may_ban |= whole >= 20 and gone > 0.9 * whole and true == [""] and row["key"] not in truth.banned
    assert truth.is_cut or {row["key"] for row in rows} == {one.client for one in truth.refused}
    names = {"ban": "Ban for 1 h", "look": "Look at the client", "change": "Change a limit"}
    actions = summary["actions"]
    assert not actions or [action for action in names if names[action] in buttons] == actions
    assert ("ban" in actions) == may_ban or ("ban" not in actions and (truth.is_cut or not actions))


async def check_statistics(incident: Incident, truth: Truth) -> None:
    """Check the figures of the API."""
    answer, summary = await incident.api("statistics"), await incident.api("summary")
    expected = {"passed": len(truth.passed), "refused": len(truth.refused), "unavailable": truth.reasons["unavailable"]}
    expected |= {name: truth.reasons[name] for name in ("banned", "blocked")}
    assert {name: answer["total"][name] for name in expected} == expected
    assert {name: sum(step[name] for step in answer["steps"]) for name in expected} == expected
    if summary["refusals"]:
        check_buttons(" ".join((await incident.page(""))[1:4]), summary, truth, incident)


def explained(limiter: Limiter, key: str) -> tuple[int, list[str]]:
    """Return the exit code of the command, in another process on the same store, and the lines that it writes."""
    out = io.StringIO()

    def ask(url: str, work: Any, *, writes: bool = False) -> Any:
        return asyncio.run(work(Limiter(limiter.store, on_error="deny")))

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.setattr(main, "ask", ask)
        return run(["explain", key, "--store", "redis://unused"]), out.getvalue().splitlines()


async def check_key(incident: Incident, key: str) -> None:
    """Check what page, API and command say of a client or a key, and the next request of an address."""
    limiter = incident.workers[0].limiter
    refusals = [one for one in incident.decided() if one.outcome.refusal is not None]
    names = {key}
    if "client" in incident.options and re.fullmatch(r"[0-9.]+", key):  # it is counted as one of its network
        names.add(str(ip_network(f"{key}/28", strict=False)))
    own = [one for one in refusals if not names.isdisjoint((one.client, one.ban, *one.keys))]
    answer, lines = await incident.api("client", key=key), await incident.page("clients", key=key)
    rows = table(lines, "Latest refusals", "At least since |")
    assert sum(number(row[-1]) for row in rows) == len(answer["refusals"]) <= min(10, len(own))
    behind = [line for line in lines if line.startswith("Refused behind it by ")]
    assert behind == [f"Refused behind it by {rule}: {key}" for key, rule in answer["behind"].items()]
    # A worker keeps its last 40 refusals.
    assert len(refusals) > 40 or len(answer["refusals"]) == min(10, len(own))
    for since, *about, times in rows:
        alike = [one for one in own if about == [one.reason, ", ".join(one.by) or NONE, str(one.outcome.status)]]
        assert sum(one.at_s >= unix_of(since) for one in alike) >= number(times), since
        assert any(one.at_s == unix_of(since) for one in alike), since
    truth = Truth(incident.decided(5))
    # An address may be counted as one of a network.
    is_known = key in {**truth.clients, **truth.keys} or "client" not in incident.options
    if is_known and not truth.is_cut and len(truth.keys) <= 100:
        lately = [one for one in truth.clients.get(key, truth.keys.get(key, [])) if one.is_refused]
        assert (answer["seen"] or {"refused": 0})["refused"] == len(lately)
    ban = await limiter.banned(key)
    assert (answer["ban"] and answer["ban"]["key"]) == (ban and ban.key)
    code, verdict = int(answer["refused_by"] is not None), ""
    if not incident.is_memory:
        code, lines = await asyncio.to_thread(explained, limiter, key)
        (verdict,) = [line for line in lines if line.startswith(f"{key}: ")]
        assert (code == 1) == ("refused by" in verdict) == (answer["refused_by"] is not None), verdict
        is_off = any(change.name == "*" for change in await limiter.overrides())
        assert is_off == ("every request passes, as all workers are off until" in verdict)
        for said in filter(
            None, [re.fullmatch(r"refused behind it by (.*): slidegate explain '?(.*?)'?", line) for line in lines]
        ):
            assert any(said[2] in one.keys and said[1] == ", ".join(one.by) for one in own), said[0]
        if ends := re.search("its last refusal was at (.*)$", verdict):
            assert unix_of(ends[1]) == max(one.at_s for one in own)
    if key in truth.clients and not key.endswith("/28"):
        client = key.replace("::/64", "::1")
        got = await call(incident.workers[0], client=(client, 1))
        await incident.publish()
        surely = re.search("(?<!may be) refused by .* until [^(]*$", verdict)
        assert not surely if got.status == 200 else code == 1, (verdict, got.status)


SEEDS: list[Any] = [*range(10), *(pytest.param(seed, marks=pytest.mark.all) for seed in range(10, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_of_an_incident_is_true(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "now_s", watcher.now_s)
    monkeypatch.chdir(tmp_path)
    incident = Incident(seed, FollowedFiles(Path()))
    monkeypatch.setattr("slidegate.ops.dashboard.service.time", lambda: incident.clock.now_us / 1_000_000)

    async def look() -> None:
        await incident.play()
        if incident.is_away:
            assert (await incident.page(""))[0].startswith(
                ("The store is away since 2027-", "The store did not answer")
            )
            return
        truth = Truth(incident.decided(5))
        await truth.look_up_bans(incident.workers[0].limiter)
        check_now(await incident.page(""), truth)
        await check_clients(incident, truth)
        await check_changes(incident)
        await check_statistics(incident, truth)
        keys = [ban.key async for ban in incident.any_limiter().bans()][:2]
        for some in ([one.client for one in truth.refused], [*truth.clients], [*truth.keys]):
            keys += incident.draw.sample(some, min(3, len(some)))
        for key in dict.fromkeys(keys):
            await check_key(incident, key)

    with limits_clock(incident.clock):
        asyncio.run(look())
