"""The command `bagua-bench VERB [ARGUMENTS]`: every command of the suite under one name. No torch import."""

from __future__ import annotations

import runpy
import sys
from typing import NamedTuple


class Verb(NamedTuple):
    """What a verb runs, and what it is for."""

    module: str
    help: str
    first: str = ""
    """Placed before the arguments; {} stands for the first of them."""


VERBS = {
    "run": Verb("bagua_bench", "one run, or a sweep with -m: run task=vgg16 algo=bytegrad; --help lists all keys"),
    "campaign": Verb("bagua_bench", "the runs of a campaign, side by side: campaign quick", "campaign={}"),
    "advise": Verb("bagua_bench.advise", "which algorithm and transport for a task on a cluster"),
    "figures": Verb("bagua_bench.figures", "plot the records of a campaign: figures quick"),
    "report": Verb("bagua_bench.report", "records as an HTML page"),
    "compare": Verb("bagua_bench.analysis.compare", "two cells or sets of them: what differs, and by how much"),
    "export": Verb("bagua_bench.analysis.export", "records as a table: export results --to runs.csv"),
    "simulate": Verb("bagua_bench.calibrate", "calibrate and validate the simulator; profile a machine"),
    "network": Verb("bagua_bench.network", "how exactly this machine emulates networks: network accuracy"),
    "overhead": Verb(
        "bagua_bench.overhead", "an algorithm's time and memory beside DDP's, no network between: overhead time"
    ),
    "loading": Verb("bagua_bench.loading", "how even the ranks' work is, and what a cache saves: loading balance"),
    "peers": Verb("bagua_bench.peers", "install a peer that the suite does not bring: peers build horovod"),
    "transport": Verb("bagua_bench.transport", "settings of Bagua-Net for NCCL, and its check on GPUs"),
    "check-gpu": Verb("bagua_bench", "check and measure the suite on this machine's GPU", "check-gpu"),
}


def main() -> int:
    """Exit code of the verb's command; 2 for an unknown verb."""
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in ("-h", "--help"):
        width = max(map(len, VERBS))
        print("usage: bagua-bench VERB [ARGUMENTS]\n")
        print("\n".join(f"  {verb:{width}}  {what.help}" for verb, what in VERBS.items()))
        return 0
    if name not in VERBS:
        hint = f"; for a run: bagua-bench run {name}" if "=" in name else ""
        print(f"{name}: no such verb; allowed: {', '.join(VERBS)}{hint}", file=sys.stderr)
        return 2
    verb = VERBS[name]
    if "{}" in verb.first:
        if not arguments or arguments[0].startswith("-") or "=" in arguments[0]:
            print(f"{name}: needs a name after it, as in: bagua-bench {verb.help.rpartition(': ')[2]}", file=sys.stderr)
            return 2
        arguments = [verb.first.format(arguments[0]), *arguments[1:]]
    elif verb.first:
        arguments = [verb.first, *arguments]
    sys.argv = [f"bagua-bench {name}", *arguments]
    runpy.run_module(verb.module, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
