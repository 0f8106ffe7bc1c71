"""`bagua-bench network accuracy`: a table of how exactly this machine's backend shapes networks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bagua_bench.network import accuracy, machine
from bagua_bench.network.commands import NetworkError
from bagua_bench.processes.alone import alone
from bagua_bench.results import records


def main() -> int:
    """Exit code 0; 1 if a measurement is off by more than the tolerance, 2 if the machine has no such backend."""
    parser = argparse.ArgumentParser(prog="bagua-bench network", description=__doc__)
    parser.add_argument("command", choices=["accuracy"])
    parser.add_argument("--backend", choices=["auto", "netem", "link"], default="auto")
    parser.add_argument("--results", type=Path, default=Path("results/network"), help="folder for accuracy.jsonl")
    arguments = parser.parse_args()
    try:
        backend = machine.choose(arguments.backend, "cubic")
        machine.enter()
        found = []
        with alone(lambda text: print(text, file=sys.stderr, flush=True)):
            for record in accuracy.measure(backend):
                records.append(arguments.results / "accuracy.jsonl", record)
                found.append(record)
    except (ValueError, OSError, NetworkError) as error:
        print(error, file=sys.stderr)
        return 2
    Console(width=110).print(table(found))
    return 0 if all(record["fits"] for record in found) else 1


def table(found: list[dict[str, Any]]) -> Table:
    """The values asked for and measured, a row for every record."""
    shown = Table(title=f"backend {found[0]['asked']['backend']}: Mbit/s on the link, ms of the round trip")
    for title in ("asked", "probe", "iperf3", "asked", "probe", "ping", "drops", "within tolerance"):
        shown.add_column(title, justify="right")
    for record in found:
        rate, rtt, asked = record["rate"], record["rtt"], record["asked"]
        cells = [_text(value, 1e-6, 1) for value in (asked["bandwidth"], rate["probe"], rate["iperf3"])]
        cells += [_text(value, 1e3, 2) for value in (2 * asked["latency"], rtt["probe"], rtt["ping"])]
        shown.add_row(*cells, str(record["drops"]), "yes" if record["fits"] else "no")
    return shown


def _text(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
