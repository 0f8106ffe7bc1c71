"""All-reduce of the torch backend beside gloo, over namespaces whose flows may be limited."""

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

from tools.transport import shaped

_HOME = str(Path(__file__).resolve().parents[2])
_PORT = 29400


@contextmanager
def _ranks(sites: Sequence[shaped.Site], per_site: int, environment: Mapping[str, str]) -> Iterator[list[Any]]:
    size, processes = len(sites) * per_site, []
    variables = {**os.environ, **environment, "PYTHONPATH": _HOME, "OMP_NUM_THREADS": "1"}
    variables |= {"GLOO_SOCKET_IFNAME": sites[0].interface, "BAGUA_NET_INTERFACES": sites[0].interface}
    try:
        for rank in range(size):
            site = sites[rank // per_site]
            module = [sys.executable, "-m", "tools.transport.torch_rank"]
            processes.append(
                subprocess.Popen(
                    [*site.prefix, *module, str(rank), str(size), sites[0].address, str(_PORT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=variables,
                )
            )
        for process in processes:
            _hear(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _hear(process: Any) -> Any:
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a rank of the comparison ended")
    return json.loads(line)


def compare(
    sizes: Sequence[tuple[int, int]],
    rounds: int,
    per_site: int = 1,
    flow: float | None = None,
    link: float | None = None,
) -> list[dict[str, Any]]:
    """All-reduce of (bytes, repetitions per round) on two sites: medians over the rounds of the slowest rank's mean
    seconds, and their ratio.

    `flow` limits every connection, `link` all together, in bits/s.
    """
    with shaped.pair() as sites, _ranks(sites, per_site, {"BAGUA_NET_STREAMS": "4"}) as processes:
        time.sleep(0.2)
        for site in sites:
            if flow is not None:
                shaped.limit_connections(site, flow)
            elif link is not None:
                shaped.limit_flows(site, {}, link)
        rows = []
        for size, repeat in sizes:
            for process in processes:
                process.stdin.write(json.dumps({"bytes": size, "repeat": repeat, "rounds": rounds}) + "\n")
                process.stdin.flush()
            answers = [_hear(process) for process in processes]
            times = [answer["seconds"] for answer in answers]
            slowest = {key: [max(t[key][k] for t in times) for k in range(rounds)] for key in times[0]}
            row: dict[str, Any] = {
                "bytes": size,
                "ranks": len(processes),
                "repeat": repeat,
                "rounds": rounds,
                "seconds": slowest,
                "streams": answers[0]["streams"],
            }
            row |= {key: median(values) for key, values in slowest.items()}
            rows.append({**row, "times_gloo": row["gloo"] / row["bagua_net"]})
        return rows
