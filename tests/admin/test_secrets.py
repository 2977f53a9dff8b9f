"""The password of a store stands in no answer, no log, and nothing that is printed, whatever fails."""

from __future__ import annotations

import logging

import pytest

from slidegate import Limiter, SlidegateError
from slidegate.admin import AdminRoutes
from slidegate.testing import RecordingObserver

from .dashboard_client import TOKEN, with_token

SECRET = "s3cret-of-the-store"


async def test_the_password_of_a_store_that_is_away_is_shown_nowhere(
    closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    heard = RecordingObserver()
    url = f"redis://user:{SECRET}@127.0.0.1:{closed_port}/0"
    limiter = Limiter.from_url(url, observers=[heard], deadline="5s")
    tool = AdminRoutes(limiter, token=TOKEN)
    shown = [repr(limiter), repr(limiter.store), repr(tool), repr(vars(tool))]
    with caplog.at_level(logging.DEBUG):
        for path in ("/config", "/stats", "/rules", "/clients", "/bans", "/lists", "/events", "/history", "/nothing"):
            answer = await with_token(tool, "GET", path)
            shown += [answer.body.decode(), str(answer.start)]
        body = {"target": "198.51.100.7", "duration": "1h", "reason": "x"}
        answer = await with_token(tool, "POST", "/bans", said=body)
        shown += [answer.body.decode(), str(answer.status)]
        with pytest.raises(SlidegateError) as raised:
            await limiter.ban("198.51.100.7", "1h")
        shown += [str(raised.value), repr(raised.value), caplog.text, str(heard.events)]
    assert answer.status == 503
    assert "store_failed" in str(heard.events)
    for text in shown:
        assert SECRET not in text
        assert TOKEN not in text
    await limiter.close()
