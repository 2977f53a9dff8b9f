"""What cannot work is refused where it is written: messages.txt has each message whole, as its user reads it."""

import ast
import asyncio
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from starlette.requests import Request

from slidegate import BanPolicy, ConfigurationError, Limit, Limiter, MemoryStore, Networks, Quota, parse_limits
from slidegate.core import Concurrency, CounterWindow, HotKeys, MetricWindow, RollingTotals
from slidegate.core.addresses import parse_address, parse_network
from slidegate.core.bans.ban import ban_key, clean_reason
from slidegate.core.bans.rows import from_rows
from slidegate.dashboard import Dashboard
from slidegate.events import Observer
from slidegate.httpx import LimitedTransport, SyncLimitedTransport
from slidegate.ops.replay import AccessLogs
from slidegate.ops.statistics import Statistics
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock, RecordingObserver, limits_clock

KNOWN = [BanPolicy, Limit, Limiter, MemoryStore, Networks, Quota, parse_limits, Concurrency, HotKeys, MetricWindow]
KNOWN += [RollingTotals, parse_address, parse_network, ban_key, clean_reason, from_rows, Dashboard, LimitedTransport]
KNOWN += [SyncLimitedTransport, AccessLogs, Statistics, OtelMetrics, PrometheusMetrics, FakeClock, limits_clock]
KNOWN += [datetime, timedelta, CounterWindow, Observer, RecordingObserver]
TOKEN = "token-for-tests-0123456789abcdef"
NAMES = {
    **{known.__name__: known for known in KNOWN},
    "ast": ast,
    "os": os,
    "Request": Request,
    "TOKEN": TOKEN,
    "run": asyncio.run,
    "sleep": asyncio.sleep,
    "HEADER": '{"slidegate": "bans", "version": 4}',
    "HEAD": {"slidegate": "bans", "version": 4},
    "ROW": {"key": "user:eve", "reason": "", "by": "ann", "level": 0, "since_us": 0, "until_us": None},
}
WORDS = "expected|example|name each|write|did you mean|use |keep|needs|shorter|unknown|is no|cannot be|there are no|"
WORDS += "create it|has only|give |remove|call it|do not|has no|could never|must be|cannot read"


def message_of(expression: str, names: Mapping[str, object] = NAMES) -> str:
    """Return the message of the error that an expression raises."""
    with pytest.raises(ConfigurationError) as caught:
        eval(expression, dict(names))
    assert isinstance(caught.value, ValueError)
    message = re.sub(r" at 0x\w+", "", str(caught.value))
    assert len(message) < 500
    assert "\n" not in message
    assert re.search(WORDS, message.lower()), "it says what to do"
    return message


def test_each_value_that_cannot_work_is_refused_with_what_would(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("messages.txt"), ">>> ", message_of)
