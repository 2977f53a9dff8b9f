"""Changed limits in the admin API: making, replacing and removing them, and invalid changes."""

from __future__ import annotations

from typing import Any

import pytest

from .admin_client import NOW_US, READ_TOKEN, AdminClient, Operator

CHANGE = {"name": "all", "limit": "3/minute", "duration": "2h", "reason": "slow"}


async def test_an_operator_changes_a_limit_and_takes_that_back(admin: AdminClient, operator: Operator) -> None:
    assert await operator.get("limits") == {"limits": []}
    answer = await operator.ask("PUT", "limits", json=CHANGE)
    since_at = NOW_US / 1_000_000
    made = {"name": "all", "limit": "3/minute", "by": "token 1", "reason": "slow", "since_at": since_at}
    assert (answer.status_code, answer.json()) == (200, {**made, "until_at": since_at + 7_200})
    assert await admin.visit(times=4) == [200, 200, 200, 429]
    (await operator.ask("PUT", "limits", json={**CHANGE, "limit": "4/minute", "duration": "1h", "reason": ""}))
    (changed,) = (await operator.get("limits"))["limits"]
    assert (changed["limit"], changed["reason"], changed["until_at"]) == ("4/minute", "", since_at + 3_600)
    assert await admin.visit(times=2) == [200, 429]
    client = await operator.get("client", key="203.0.113.9")
    assert [(window["limit"], window["used"]) for window in client["windows"]] == [("4/1m", 4)]
    told = (await operator.get("events", kind="limit_overridden"))["events"]
    assert [(event["details"]["was"], event["details"]["amount"]) for event in told] == [("3", "4"), ("20", "3")]
    taken_back = await operator.ask("DELETE", "limits", name="all")
    assert (taken_back.status_code, taken_back.json()) == (200, {"name": "all"})
    again = await operator.ask("DELETE", "limits", name="all")
    assert (again.status_code, again.json()["detail"]) == (404, 'the string "all" is not the name of a changed limit')
    assert await admin.visit(times=20) == [200] * 16 + [429] * 4
    assert await operator.get("limits") == {"limits": []}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "al"}, "did you mean 'all'"),
        ({"limit": "3/hour"}, "in the code it is '20/1m'"),
        ({"limit": "201/minute"}, "expected an amount from 1 to 200"),
        ({"limit": 5}, 'limit: expected the limit with another amount, for example "50/minute", got the number 5'),
        ({"duration": "31d"}, 'duration: expected a length of time from 1s to 30 days, for example "2h", got'),
        ({"duration": None}, "duration: expected a length of time"),
        ({"reason": "x" * 1_025}, "reason: expected at most 1024 characters"),
        ({"force": True}, "force: there is no such parameter"),
        ({"name": "slidegate-wrong-tokens"}, "operators' tools"),
    ],
)
async def test_what_cannot_be_changed_so_is_refused_in_words(
    values: dict[str, Any], says: str, admin: AdminClient, operator: Operator
) -> None:
    answer = await operator.ask("PUT", "limits", json={**CHANGE, **values})
    assert answer.status_code == 422
    assert says in answer.json()["detail"]
    assert await admin.limiter.overrides() == []


async def test_who_may_only_look_changes_nothing(admin: AdminClient) -> None:
    reader = admin.operator(READ_TOKEN)
    assert (await reader.ask("PUT", "limits", json=CHANGE)).status_code == 403
    assert (await reader.ask("DELETE", "limits", name="all")).status_code == 403
    assert await reader.get("limits") == {"limits": []}
