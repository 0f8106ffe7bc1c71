"""Operations of the torch backend beside gloo's, over namespaces whose flows may be limited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bagua_bench.network.topology import Host
from tools.transport import shaped, torch_rank

_HOME = str(Path(__file__).resolve().parents[2])
_PORT = 29400
RANK = "tools.transport.torch_rank"


@contextmanager
def ranks(
    module: str, sites: Sequence[shaped.Site] | Sequence[Host], per_site: int, environment: Mapping[str, str]
) -> Iterator[list[Any]]:
    """Processes of `module`, which takes rank, size, and the store's host and port; each has said that it is ready."""
    size, processes = len(sites) * per_site, []
    variables = {**os.environ, **environment, "PYTHONPATH": _HOME, "OMP_NUM_THREADS": "1"}
    variables |= {"GLOO_SOCKET_IFNAME": sites[0].interface, "BAGUA_NET_INTERFACES": sites[0].interface}
    try:
        for rank in range(size):
            site = sites[rank // per_site]
            command = [sys.executable, "-m", module]
            processes.append(
                subprocess.Popen(
                    [*site.prefix, *command, str(rank), str(size), sites[0].address, str(_PORT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=variables,
                )
            )
        for process in processes:
            hear(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def hear(process: Any) -> Any:
    """The next answer of a rank. RuntimeError if it has ended."""
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a rank of the comparison ended")
    return json.loads(line)


def tell(process: Any, command: Mapping[str, Any]) -> None:
    """Give a rank a command."""
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()


def compare(
    operations: Sequence[tuple[str, int, int]],
    rounds: int,
    per_site: int = 1,
    flow: float | None = None,
    link: float | None = None,
) -> list[dict[str, Any]]:
    """Operations on two sites, each with bytes and repetitions per round: medians over the rounds of the slowest rank's
    mean seconds, and the median of the rounds' ratios: a shared machine may be half as fast for a second, which meets
    both backends of a round. Each round has new processes, since how they and their connections come to lie makes more
    difference than what follows.

    `flow` limits every connection, `link` all together, in bits/s.
    """
    found: list[list[dict[str, Any]]] = []
    for number in range(rounds):
        ways = torch_rank.BACKENDS[:: 1 if number % 2 == 0 else -1]
        with shaped.pair() as sites, ranks(RANK, sites, per_site, {"BAGUA_NET_STREAMS": "4"}) as processes:
            time.sleep(0.2)
            for site in sites:
                if flow is not None:
                    shaped.limit_connections(site, flow)
                elif link is not None:
                    shaped.limit_flows(site, {}, link)
            found.append([ask(processes, *operation, rounds=1, ways=ways) for operation in operations])
    rows = []
    for once in zip(*found, strict=True):
        seconds = {way: [row["seconds"][way][0] for row in once] for way in torch_rank.BACKENDS}
        typical = {way: median(values) for way, values in seconds.items()}
        rows.append({**once[-1], "rounds": rounds, "seconds": seconds, **typical})
        rows[-1]["times_gloo"] = median(
            gloo / own for gloo, own in zip(seconds["gloo"], seconds["bagua_net"], strict=True)
        )
    return rows


def ask(
    processes: Sequence[Any],
    operation: str,
    size: int,
    repeat: int,
    rounds: int,
    warm: bool = True,
    ways: Sequence[str] = torch_rank.BACKENDS,
) -> dict[str, Any]:
    """One operation on ranks of RANK, as `compare`; `warm`: in each round, one more comes first and is not counted."""
    asked = {"operation": operation, "bytes": size, "repeat": repeat, "rounds": rounds}
    answers = ask_all(processes, {**asked, "warm": warm, "ways": list(ways)})
    times = [answer["seconds"] for answer in answers]
    slowest = {key: [max(t[key][k] for t in times) for k in range(rounds)] for key in times[0]}
    row = {**asked, "ranks": len(processes), "seconds": slowest, "streams": answers[0]["streams"]}
    return row | {key: median(values) for key, values in slowest.items()}


def ask_all(processes: Sequence[Any], command: Mapping[str, Any]) -> list[Any]:
    """Every rank's answer to a command."""
    for process in processes:
        tell(process, command)
    return [hear(process) for process in processes]
