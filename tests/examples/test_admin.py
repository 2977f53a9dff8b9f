"""The example of an API with operators does what its operators need on a bad day."""

from __future__ import annotations

import httpx

from examples.admin.app import make_app
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

TOKEN, READ_TOKEN = "operators-0123456789abcdef", "support-0123456789abcdef"


async def test_an_operator_finds_a_customer_raises_nothing_and_resets_the_windows() -> None:
    app = make_app(Limiter(MemoryStore(clock=FakeClock())), TOKEN, READ_TOKEN)
    customer = httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=("203.0.113.9", 1)),
        base_url="http://app.test",
        headers={"X-API-Key": "free-key"},
    )
    desk = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app.test/admin/")
    support, operator = ({"Authorization": f"Bearer {token}"} for token in (READ_TOKEN, TOKEN))
    assert [(await customer.get("/items/1")).status_code for _ in range(6)] == [200] * 5 + [429]

    asked = {"kind": "header", "name": "X-API-Key", "value": "free-key"}
    key = (await desk.post("keys/find", json=asked, headers=support)).json()["key"]
    seen = (await desk.get("client", params={"key": key}, headers=support)).json()
    used = {window["limit"]: (window["used"], window["amount"]) for window in seen["windows"]}
    assert used["5/1m"] == (5, 5)
    assert used["100/1d"] == (5, 100)
    assert seen["refusals"][0]["rule"] == "plan"

    assert (await desk.post("keys/reset", json={"key": key}, headers=support)).status_code == 403
    assert (await desk.post("keys/reset", json={"key": key}, headers=operator)).json()["forgotten"]
    assert (await customer.get("/items/1")).status_code == 200

    ban = {"target": "203.0.113.0/24", "duration": "1h", "reason": "scraping"}
    assert (await desk.post("bans", json=ban, headers=operator)).status_code == 201
    assert (await customer.get("/items/1")).status_code == 403
    assert (await desk.delete("bans", params={"target": ban["target"]}, headers=operator)).status_code == 200
    assert (await customer.get("/items/1")).status_code == 200
