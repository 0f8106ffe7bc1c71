"""`bagua-bench loading balance` and `bagua-bench loading cache`, followed by KEY=VALUE as in a run.

balance: the work of the ranks' batches over an epoch, with samples of different lengths at random and balanced, in
batches as they come and of similar length: how much the heaviest rank of a step has to do, and how much all on average.
Nothing is trained; a batch of the task's one length is work of 1.
cache: two ranks of this machine load two epochs without a cache and two with a new one: decoded JPEG files (generated,
unless task.data names a folder), and filter banks of generated utterances. Nothing is trained.
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
from bagua_bench.loading import balance, cache
from bagua_bench.processes.together import PartFailed

_TASKS = {"balance": "transformer,bert_large", "cache": "resnet50,transformer"}


def main() -> int:
    """Exit code 0; 1 if a part failed, 2 if the configuration is wrong."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench loading", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["balance", "cache"])
    usual = "; ".join(f"{part}: {names}" for part, names in _TASKS.items())
    parser.add_argument("--tasks", metavar="NAME,...", help=f"(default {usual})")
    parser.add_argument("--steps", type=int, help="balance: how many (default: an epoch)")
    parser.add_argument("--samples", type=int, default=512, help="cache: of an epoch, about (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="cache: each with a new cache (default %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results/loading"), help="folder for balance.json, ...")
    given, overrides = parser.parse_known_args()
    for option in ("steps", "samples", "rounds"):
        if getattr(given, option) is not None and getattr(given, option) < 1:
            parser.error(f"--{option} {getattr(given, option)}: must be at least 1")
    tasks = (given.tasks or _TASKS[given.part]).split(",")
    try:
        register()
        with initialize_config_dir(str(FOLDER), version_base=None):
            if given.part == "balance":
                rows = balance.rows(tasks, overrides, given.steps)
            else:
                rows = cache.rows(tasks, overrides, given.samples, given.rounds)
    except (HydraException, OmegaConfBaseException) as error:
        print(explain(error, [*(f"task={name}" for name in tasks), *overrides]), file=sys.stderr)
        return 2
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except PartFailed as error:
        print(error, file=sys.stderr)
        return 1
    write(given.results / f"{given.part}.json", rows)
    show(rows, balance.COLUMNS if given.part == "balance" else cache.COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
