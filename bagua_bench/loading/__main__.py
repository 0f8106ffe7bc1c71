"""`bagua-bench loading balance`, followed by KEY=VALUE as in a run.

balance: the work of the ranks' batches over an epoch, with samples of different lengths at random and balanced, in
batches as they come and of similar length: how much the heaviest rank of a step has to do, and how much all on average.
Nothing is trained; a batch of the task's one length is work of 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.explain import explain
from bagua_bench.configuration.resolve import ConfigError, register
from bagua_bench.console.rows import show, write
from bagua_bench.loading import balance


def main() -> int:
    """Exit code 0; 1 if a part failed, 2 if the configuration is wrong."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench loading", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["balance"])
    parser.add_argument("--tasks", default="transformer,bert_large", metavar="NAME,...")
    parser.add_argument("--steps", type=int, help="balance: how many (default: an epoch)")
    parser.add_argument("--results", type=Path, default=Path("results/loading"), help="folder for balance.json, ...")
    given, overrides = parser.parse_known_args()
    if given.steps is not None and given.steps < 1:
        parser.error(f"--steps {given.steps}: must be at least 1")
    tasks = given.tasks.split(",")
    try:
        register()
        with initialize_config_dir(str(FOLDER), version_base=None):
            rows = balance.rows(tasks, overrides, given.steps)
    except (HydraException, OmegaConfBaseException) as error:
        print(explain(error, [*(f"task={name}" for name in tasks), *overrides]), file=sys.stderr)
        return 2
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    write(given.results / f"{given.part}.json", rows)
    show(rows, balance.COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
