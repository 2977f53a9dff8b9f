"""How numbers are shown, and what lines of logs become: values.txt has each expression with its value."""

from collections.abc import Callable
from pathlib import Path

from slidegate.ops.dashboard.page import count, ms, rate, share, span
from slidegate.ops.replay.replay import scope_of
from slidegate.ops.replay.report import measure
from slidegate.ops.rows import span_of

from .replay.test_replay import record

NAMES = {one.__name__: one for one in (count, ms, rate, share, span, scope_of, measure, span_of, record)}


def test_numbers_are_shown_and_targets_read_as_people_do(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("values.txt"), ">>> ", lambda line: repr(eval(line, dict(NAMES))))
