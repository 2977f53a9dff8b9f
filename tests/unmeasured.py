"""Tests whose coverage nobody measures.

To measure makes Python three times as slow. Those below run code that others run as well, only for longer, so they run
at full speed: the contract over the further servers, mutations, floods, and replays of whole logs.

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
    "tests/browser/test_docs_site.py",
    "tests/core/statistics/test_hot_keys.py::test_on_real_traffic_",
    "tests/core/test_mutations.py",
    "tests/examples/test_bans.py",
    "tests/examples/test_demo.py",
    "tests/examples/test_llm_gateway.py",
    "tests/examples/test_login.py",
    "tests/examples/test_saas.py",
    "tests/examples/test_serving.py",
    "tests/first_steps/test_walk.py",
    "tests/limiter/events/test_delivery.py::test_forks_",
    "tests/limiter/events/test_log_events.py::test_a_flood_",
    "tests/limiter/sync/test_prefork.py::test_a_child_that_is_forked_",
    "tests/limiter/test_limiter.py::TestContractOfAnAwaitedStore::test_bans_",
    "tests/ops/command/explain/test_bursts.py",
    "tests/ops/command/stored/test_ban_files.py::test_an_import_that_ends_half_way_",
    "tests/ops/command/stored/test_ban_group.py::test_an_interrupted_list_",
    "tests/ops/metrics/test_prometheus.py::test_random_paths_and_clients_",
    "tests/ops/simulation/test_replay.py::test_a_replay_decides_as_the_gate_does_over_asgi",
    "tests/ops/simulation/test_suggestion.py::test_every_limit_of_every_rule_",
    "tests/ops/simulation/test_suggestion.py::test_suggested_limits_",
    "tests/ops/test_access_log_lines.py::test_a_small_file_that_unpacks_",
    "tests/ops/test_access_log_lines.py::test_real_logs_",
    "tests/ops/test_access_logs.py::test_control_c_",
    "tests/pages/test_commands.py",
    "tests/stores/test_lmdb.py::TestContractOverTwoProcesses",
    "tests/stores/test_lmdb.py::TestContractWhereEveryCommitIsSynced",
    "tests/stores/test_lmdb.py::TestContractWhileBansAreRead",
    "tests/stores/test_redis_script.py",
    "tests/stores/test_redis_store.py::TestCluster::test_bans_",
    "tests/stores/test_redis_store.py::TestValkey",
    "tests/stores/test_storeys.py::TestContractWhileWindowsMove::test_bans_",
    "tests/test_parsing.py::test_reading_takes_time_in_proportion_",
    "tests/web/test_bans.py::test_an_ipv6_client_that_rotates_",
    "tests/web/test_finding_rules.py::test_the_index_",
    "tests/web/test_lists.py::test_no_lookup_sees_half_a_list_",
    "tests/web/test_message_limits.py::test_nothing_of_a_connection_",
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
