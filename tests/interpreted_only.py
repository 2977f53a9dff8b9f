"""The tests that `python3 dev.py compiled` leaves out, by name: each needs what only interpreted source can do."""

from __future__ import annotations

from typing import Final

MUTATED: Final = "the source is changed and loaded again"
RACING: Final = "compiled code is interrupted at other moments, so the race that an absent lock loses is won by chance"
PATCHED: Final = "a method of a compiled class cannot be replaced"
DERIVED: Final = "a compiled class cannot be derived from"
CALLED: Final = "compiled code calls the function that the test replaces directly"
UNDOCUMENTED: Final = "a compiled class has no docstring, and a compiled package loads a module of its own"
INLINED: Final = "a constant that the test replaces is a part of the compiled code"

LEFT_OUT: Final = {
    "core/test_mutations.py": MUTATED,
    "core/statistics/test_buffered.py::test_eight_threads_that_note_and_read_lose_nothing": INLINED,
    "core/statistics/test_hot_keys.py::test_without_the_guard_they_would_lose_something": RACING,
    "core/statistics/test_metrics.py::test_without_the_guard_they_would_lose_something": RACING,
    "core/statistics/test_totals.py::test_without_the_guard_they_would_lose_something": RACING,
    "examples/test_demo.py::test_a_violation_is_printed_and_makes_the_exit_code_1": DERIVED,
    "examples/test_demo.py::test_a_wrong_retry_after_is_a_violation": DERIVED,
    "limiter/inspection/test_inspect.py::test_a_thousand_rules_are_asked_a_part_at_a_time_and_the_rest_is_counted": (
        DERIVED
    ),
    "limiter/test_failures.py::test_a_part_of_a_store_that_fails_takes_nobody_else_off_it": PATCHED,
    "limiter/test_failures.py::test_a_probe_that_meets_a_foreign_value_is_followed_by_another_at_once": PATCHED,
    "limiter/test_failures.py::test_an_error_about_one_key_is_no_sign_that_a_server_that_failed_is_well": PATCHED,
    "limiter/test_failures.py::test_each_part_says_that_it_failed_and_that_it_answers_again": PATCHED,
    "limiter/test_failures.py::test_what_concerns_a_key_or_a_slot_alone_is_answered_by_the_policy_and_opens_nothing": (
        PATCHED
    ),
    "limiter/test_leases.py::test_spent_later_it_would_not": INLINED,
    "stores/test_bookings.py::test_strangers_in_a_shared_cell_wait_together": INLINED,
    "stores/test_bookings.py::test_the_ledger_finds_a_window_that_holds_too_much": PATCHED,
    "stores/test_memory.py::test_every_table_gets_its_turn_and_a_call_looks_at_a_few": PATCHED,
    "stores/test_memory.py::test_without_the_lock_the_same_threads_break_the_bound": RACING,
    "stores/test_memory.py::test_without_the_lock_two_event_loops_break_the_bound": RACING,
    "stores/test_optional_protocols.py::test_a_limiter_takes_up_what_a_store_offers": DERIVED,
    "stores/test_shared_cells.py::test_a_key_that_has_moved_is_counted_by_itself": INLINED,
    "stores/test_shared_cells.py::test_a_refund_after_the_move_frees_the_unit_in_the_cell_and_in_the_copy_of_its_key": (
        INLINED
    ),
    "stores/test_shared_cells.py::test_what_a_flood_leaves_behind_is_gone_after_two_windows": INLINED,
    "stores/test_storeys.py::test_a_charge_is_handed_back_after_its_window_went_down_and_came_up": INLINED,
    "stores/test_storeys.py::test_a_flood_that_asks_everything_twice_holds_no_more_live_windows_than_there_may_be": (
        INLINED
    ),
    "stores/test_storeys.py::test_a_window_with_bookings_stays_up_until_they_are_over": INLINED,
    "stores/test_storeys.py::test_rows_are_found_however_often_shards_were_split": INLINED,
    "test_broken_promises.py": MUTATED,
    "test_logs.py::test_what_was_raised_over_another_exception_is_told_with_it": CALLED,
    "test_public_api.py::test_public_name_says_what_it_is": UNDOCUMENTED,
    "test_public_api.py::test_the_core_runs_on_the_standard_library_alone": UNDOCUMENTED,
    "web/answers/test_random_traffic.py::test_figures_are_those_of_the_recorder_also_when_series_run_out": INLINED,
    "web/websockets/test_message_limits.py::test_nothing_of_a_connection_is_kept_when_it_is_over": DERIVED,
    "web/test_places.py::test_a_gate_that_lets_go_too_early_is_found_out": DERIVED,
    "web/findings/test_findings.py::test_a_store_that_forgets_what_it_counts_is_found_when_it_is_known": DERIVED,
}
"""A file of tests, or a test or a class of tests in one, below this directory -> why it is left out."""


def reason_to_leave_out(node: str) -> str | None:
    """Return why a test is left out, given its name as pytest writes it; None if it is run."""
    file, _, test = node.removeprefix("tests/").partition("::")
    names = (file, f"{file}::{test.partition('::')[0]}", f"{file}::{test.partition('[')[0]}")
    return next((LEFT_OUT[name] for name in names if name in LEFT_OUT), None)
