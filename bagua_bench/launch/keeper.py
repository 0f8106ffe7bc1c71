"""Keeps the store in which the agents of an elastic run meet, apart from the servers that may be lost.

`python -m bagua_bench.launch.keeper PARENT ADDRESS FILE` writes the port to FILE and ends with the process PARENT.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bagua_bench.processes import mailbox
from bagua_bench.processes.interrupts import ENDING
from bagua_bench.processes.lifetime import die_with_parent


def main() -> None:
    """Keep the store until the process is ended."""
    die_with_parent(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    from torch._C._distributed_c10d import TCPStore  # importing it takes seconds

    store = TCPStore(sys.argv[2], 0, is_master=True, wait_for_workers=False)
    mailbox.post(Path(sys.argv[3]), store.port)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
