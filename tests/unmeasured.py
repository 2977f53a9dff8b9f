"""Tests whose coverage nobody measures.

To measure makes Python three times as slow, and its start, too. Those below run code that others run as well, only for
longer, so they run at full speed: the contract over the further servers, mutations, floods, replays of whole logs,
several processes at once, the examples, and the tests that read the files of the checkout.

There is a second reason. The tool that measures has a lock: a process that is forked while another thread holds it
waits for it for ever, and so does one that is interrupted between taking it and letting it go.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

UNMEASURED: Final = (
    "tests/benchmarks/",
    "tests/browser/",
    "tests/core/bans/test_in_force.py::test_no_reason_",
    "tests/core/statistics/test_hot_keys.py::test_memory_",
    "tests/core/statistics/test_hot_keys.py::test_on_real_traffic_",
    "tests/core/statistics/test_lifetime.py::test_every_time_",
    "tests/core/statistics/test_metrics.py::test_a_window_is_a_plain_list_",
    "tests/core/statistics/test_metrics.py::test_reading_changes_nothing",
    "tests/core/statistics/test_totals.py::test_a_million_",
    "tests/core/test_mutations.py",
    "tests/core/test_networks.py::test_membership_",
    "tests/examples/",
    "tests/first_steps/",
    "tests/limiter/events/test_delivery.py::test_forks_",
    "tests/limiter/events/test_log_events.py::test_a_flood_",
    "tests/limiter/figures/test_real_workers.py",
    "tests/limiter/sync/test_prefork.py::test_a_child_that_is_forked_",
    "tests/limiter/sync/test_sync_limiter.py::test_threads_get_answers_",
    "tests/limiter/sync/test_threads_at_once.py",
    "tests/limiter/test_leases.py::test_a_hot_key_asks_",
    "tests/limiter/test_leases.py::test_what_is_refused_for_the_sake_",
    "tests/limiter/test_leases.py::test_workers_with_leases_",
    "tests/limiter/test_limiter.py::TestContractOfAnAwaitedStore::test_answers_",
    "tests/limiter/test_limiter.py::TestContractOfAnAwaitedStore::test_bans_",
    "tests/limiter/test_limiter.py::test_all_networks_",
    "tests/limiter/test_limiter.py::test_more_spellings_",
    "tests/ops/admin/test_api_bans.py::test_a_page_of_a_hundred_thousand_",
    "tests/ops/command/explain/test_bursts.py",
    "tests/ops/command/stored/test_ban_files.py::test_an_import_that_ends_half_way_",
    "tests/ops/command/stored/test_ban_files.py::test_of_two_commands_",
    "tests/ops/command/stored/test_ban_group.py::test_a_reader_that_leaves_",
    "tests/ops/command/stored/test_ban_group.py::test_an_interrupted_list_",
    "tests/ops/metrics/test_prometheus.py::test_random_paths_and_clients_",
    "tests/ops/metrics/test_workers.py",
    "tests/ops/simulation/test_replay.py::test_a_replay_decides_as_the_gate_does_over_asgi",
    "tests/ops/simulation/test_replay.py::test_every_key_of_a_configuration_",
    "tests/ops/simulation/test_suggestion.py::test_every_limit_of_every_rule_",
    "tests/ops/simulation/test_suggestion.py::test_suggested_limits_",
    "tests/ops/test_access_log_lines.py::test_a_small_file_that_unpacks_",
    "tests/ops/test_access_log_lines.py::test_read_and_skipped_",
    "tests/ops/test_access_log_lines.py::test_real_logs_",
    "tests/ops/test_access_logs.py::test_control_c_",
    "tests/outbound/test_against_our_own_gate.py::test_sixteen_tasks_",
    "tests/outbound/test_bound_over_a_network.py",
    "tests/pages/",
    "tests/soak/",
    "tests/stores/test_bookings.py::test_huge_debts_",
    "tests/stores/test_lmdb.py::TestContract::test_answers_",
    "tests/stores/test_lmdb.py::TestContractOverTwoProcesses",
    "tests/stores/test_lmdb.py::TestContractWhereEveryCommitIsSynced",
    "tests/stores/test_lmdb.py::TestContractWhileBansAreRead",
    "tests/stores/test_lmdb_processes.py",
    "tests/stores/test_memory.py::test_a_flood_of_one_hit_keys_",
    "tests/stores/test_memory.py::test_a_long_random_trace_",
    "tests/stores/test_memory.py::test_a_reset_in_the_middle_",
    "tests/stores/test_memory.py::test_eight_threads_",
    "tests/stores/test_memory.py::test_no_key_passes_its_bound_while_",
    "tests/stores/test_memory_bans.py::test_a_flood_of_bans_",
    "tests/stores/test_memory_scenes.py",
    "tests/stores/test_places_processes.py",
    "tests/stores/test_redis_processes.py",
    "tests/stores/test_redis_script.py",
    "tests/stores/test_redis_store.py::TestCluster::test_answers_",
    "tests/stores/test_redis_store.py::TestCluster::test_bans_",
    "tests/stores/test_redis_store.py::TestRedis::test_answers_",
    "tests/stores/test_redis_store.py::TestValkey",
    "tests/stores/test_storeys.py::TestContractWhileWindowsMove::test_answers_",
    "tests/stores/test_storeys.py::TestContractWhileWindowsMove::test_bans_",
    "tests/test_architecture.py",
    "tests/test_broken_promises.py",
    "tests/test_concept_pictures.py",
    "tests/test_distribution.py",
    "tests/test_docs.py",
    "tests/test_house.py",
    "tests/test_parsing.py",
    "tests/test_proof_page.py",
    "tests/test_public_api.py",
    "tests/test_sentences.py",
    "tests/test_typing.py",
    "tests/web/bans/test_bans.py::test_an_ipv6_client_that_rotates_",
    "tests/web/rules/test_rule_set.py::test_the_index_",
    "tests/web/lists/test_lists.py::test_no_lookup_sees_half_a_list_",
    "tests/web/test_memory_bounds.py",
    "tests/web/websockets/test_message_limits.py::test_nothing_of_a_connection_",
    "tests/web/config/test_toml_lines.py::test_the_scanner_",
)
"""How the names of the tests begin."""


@contextmanager
def unmeasured() -> Iterator[None]:
    """Measure no coverage, here and in processes that begin meanwhile."""
    trace, threads_trace = sys.gettrace(), threading.gettrace()
    variables = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COVERAGE")}
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(threads_trace)  # type: ignore[arg-type]
        sys.settrace(trace)
        os.environ.update(variables)
