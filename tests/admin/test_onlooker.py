"""What one worker keeps for its operators: every decision is read once."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

from slidegate.admin.onlooker import MAX_UNREAD, UnreadDecisions
from slidegate.core.decision import Decision, Reason


def test_decisions_are_read_in_their_order_many_at_once() -> None:
    sizes, read = list[int](), list[Decision]()

    def note(decisions: Sequence[Decision]) -> None:
        sizes.append(len(decisions))
        read.extend(decisions)

    unread = UnreadDecisions(note)
    decisions = [Decision(True, Reason.OK, number) for number in range(3 * MAX_UNREAD + 7)]
    for decision in decisions:
        unread.add(decision)
    assert (sizes, len(unread)) == ([MAX_UNREAD] * 3, 7)
    unread.read()
    assert read == decisions


def test_threads_lose_no_decision_and_none_is_read_twice() -> None:
    read: list[Decision] = []
    unread = UnreadDecisions(read.extend)

    def add() -> None:
        for number in range(2_000):
            unread.add(Decision(True, Reason.OK, number))

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unread.read()
    assert len(read) == len({id(decision) for decision in read}) == 8_000
