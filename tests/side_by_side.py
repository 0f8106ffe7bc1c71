"""Which tests pytest-xdist may run beside each other: some share a machine or a run, some need a quiet machine."""

from __future__ import annotations

import fcntl
from pathlib import Path

from tests.warm import client as warm

GROUPS = {  # tests that one worker runs one after the other
    "tests/integration/test_elastic.py": "machine",
    "tests/integration/test_ended_runs.py": "machine",  # they look at what remains on the machine, or change it
    "tests/integration/test_kills.py": "machine",
    "tests/integration/test_network.py": "machine",
    "tests/integration/test_peers.py": "machine",
    "tests/integration/test_regroup.py": "machine",
    "tests/integration/test_shaped_runs.py": "machine",
    "tests/transport/test_wan.py::test_where_packets_are_lost": "machine",
    "tests/integration/test_slurm.py": "Slurm",  # they share the one that the first brings up
    "tests/integration/test_own_model.py": "own model",  # they read what one run found
    "tests/unit/test_imports.py": "imports",
    "tests/transport/test_hostile.py::test_every_fault": "in time",  # one after the other, they wait for quiet once
    "tests/transport/test_opened_late.py::test_a_death_while_connections": "in time",
    "tests/transport/test_opened_late.py::test_a_rank_that_died_before": "in time",
    "tests/transport/test_order.py::test_a_rank_of_a_tree_that_dies": "in time",
    "tests/transport/test_outages.py": "in time",
    "tests/transport/test_plugin.py::test_streams_of_one": "in time",
    "tests/transport/test_torch_failures.py::test_a_rank_that_dies_is_an_error_within": "in time",
    "tests/transport/test_torch_misuse.py::test_a_process_that_has_ended": "in time",
}
_NETWORK, _ELASTIC = "tests/integration/test_network.py", "tests/integration/test_elastic.py"
_WAN = "tests/transport/test_wan.py"
_QUIET = (  # tests that measure times, most of them of a network whose packets pass through a process on this machine
    f"{_NETWORK}::test_every_pair",
    f"{_NETWORK}::test_without_tun",
    f"{_NETWORK}::test_independent_tools",
    f"{_NETWORK}::test_a_connection_carries",
    f"{_NETWORK}::test_single_connections",
    f"{_NETWORK}::test_sites_are_as_far",
    f"{_NETWORK}::test_tcp_s_least",
    "tests/integration/test_shaped_runs.py::test_a_run_records",
    "tests/integration/test_emulate.py::test_an_emulated_run_says",  # a share of the time that layers sleep
    "tests/integration/test_emulate.py::test_a_quicker_or_slower",
    "tests/integration/test_ended_runs.py::test_interrupt",  # seconds until it has ended
    "tests/transport/test_plugin.py::test_a_small_message_is_not",
    "tests/transport/test_torch.py::test_a_group_lends_its_large",
    f"{_WAN}::test_where_packets_are_lost",
    f"{_WAN}::test_a_long_path_has",
    f"{_WAN}::test_a_connection_fills",
    "tests/unit/test_relay.py::test_a_packet_takes_the_time",
    f"{_ELASTIC}::test_a_server_that_is_lost",  # servers that come too late begin another life
    f"{_ELASTIC}::test_servers_of_an_emulated",
    "tests/integration/test_regroup.py::test_a_server_of_an_emulated",
    *(name for name, group in GROUPS.items() if group == "in time"),  # they ask for errors, and for data, in time
)


def group(nodeid: str) -> str:
    """The group of a test. Tests of one group run in one worker; most tests are a group of their own."""
    return next((name for begin, name in GROUPS.items() if nodeid.startswith(begin)), nodeid)


def is_quiet(nodeid: str) -> bool:
    """Whether a test runs while no other does."""
    return nodeid.startswith(_QUIET)


class Turn:
    """A worker's right to run tests: beside others, or alone."""

    def __init__(self) -> None:
        folder = Path(warm.address()).parent
        self._gate, self._lock = ((folder / name).open("w") for name in ("gate", "lock"))
        self._alone = False

    def take(self, nodeid: str) -> None:
        """Wait until a test may run; a worker that waits to be alone holds up those that come later."""
        if self._alone:
            return
        self._alone = is_quiet(nodeid)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._lock, fcntl.LOCK_EX if self._alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def leave(self, following: str) -> None:
        """Let others run, unless the following test has to be alone as this one had."""
        if not (self._alone and is_quiet(following)):
            self._alone = False
            fcntl.flock(self._lock, fcntl.LOCK_UN)
