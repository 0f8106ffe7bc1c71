"""A torchrun agent that also says in a file which rank failed, and why.

`python -m bagua_bench.launch.agent PARENT FILE [torchrun arguments]`; failures go to FILE. It ends with the process
PARENT, and workers, which get its id as their last argument, with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from bagua_bench.processes.interrupts import ENDING
from bagua_bench.processes.lifetime import die_with_parent


def main() -> int:
    """Run the agent; exit code 0, or 1 if a worker failed."""
    die_with_parent(int(sys.argv[1]))  # not by SIGTERM, which waits for the end of a rendezvous
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # it takes seconds
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args([*sys.argv[3:], str(os.getpid())]))
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exitcode": failure.exitcode, "signal": failure.signal_name(), "time": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        Path(sys.argv[2]).write_text(json.dumps(failures))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
