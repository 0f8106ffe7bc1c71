"""A torchrun agent that also writes to a file which rank failed, and why.

`python -m bagua_bench.launch.agent PARENT FILE [torchrun arguments]` writes failures to FILE. The agent ends with the
process PARENT. Workers get the agent's id as their last argument and end with the agent. With the variable GATE, a
folder, the agent says there that it is ready, and begins once it is open.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bagua_bench.processes import gate, mailbox
from bagua_bench.processes.interrupts import ENDING
from bagua_bench.processes.lifetime import die_with_parent

GATE = "BAGUA_BENCH_GATE"


def main() -> int:
    """Run the agent; exit code 0, or 1 if a worker failed."""
    die_with_parent(int(sys.argv[1]))  # not by SIGTERM, which waits for the end of a rendezvous
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # importing it takes seconds
    from torch.distributed.run import parse_args, run

    if folder := os.environ.get(GATE):
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous  # noqa: F401
        from torch.distributed.launcher import api  # noqa: F401  all that `run` imports, which would come after the gate

        gate.pass_through(Path(folder))
    try:
        run(parse_args([*sys.argv[3:], str(os.getpid())]))
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exitcode": failure.exitcode, "signal": failure.signal_name(), "time": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        mailbox.post(Path(sys.argv[2]), failures)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
