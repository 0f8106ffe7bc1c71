"""A torchrun agent that also says in a file which rank failed, and why.

`python -m bagua_bench.launch.agent FOLDER [torchrun arguments]`; failures go to FOLDER/failures.json.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from bagua_bench.launch.lifetime import die_with_parent


def main() -> int:
    """Run the agent; exit code 0, or 1 if a worker failed."""
    die_with_parent(signal.SIGTERM)
    folder, arguments = Path(sys.argv[1]), sys.argv[2:]
    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exitcode": failure.exitcode, "signal": failure.signal_name(), "time": failure.timestamp}
            for rank, failure in error.failures.items()
        ]
        (folder / "failures.json").write_text(json.dumps(failures))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
