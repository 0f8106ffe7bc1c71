"""Takes part in an existing job: torchrun or Slurm has started the command itself on every rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from bagua_bench.configuration.cell import Cell
from bagua_bench.results.result import Result

_PORTS = (20_000, 40_000)


def is_joined(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one rank of a torchrun or Slurm job."""
    return "RANK" in env or ("SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", "1")) > 1)


def is_recorder(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process shows and records results: rank 0 of a job, or the only process."""
    return env.get("RANK", env.get("SLURM_PROCID", "0") if is_joined(env) else "0") == "0"


def enter(env: MutableMapping[str, str] = os.environ) -> tuple[int, int]:
    """Translate Slurm's variables to torchrun's; return servers and ranks per server.

    ValueError if the job's tasks are not spread equally over its nodes.
    """
    if "RANK" not in env:
        tasks = int(env["SLURM_NTASKS"])
        nodes = int(env["SLURM_NNODES"])
        if tasks % nodes:
            raise ValueError(f"SLURM_NTASKS={tasks}: must be a multiple of SLURM_NNODES={nodes}")
        first, last = _PORTS
        env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"] = env["SLURM_PROCID"], str(tasks), env["SLURM_LOCALID"]
        env["LOCAL_WORLD_SIZE"] = str(tasks // nodes)
        env.setdefault("MASTER_ADDR", first_host(env["SLURM_NODELIST"]))
        env.setdefault("MASTER_PORT", str(first + int(env["SLURM_JOB_ID"]) % (last - first)))
    world, local = int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"])
    if world % local:
        raise ValueError(f"WORLD_SIZE={world}: must be a multiple of LOCAL_WORLD_SIZE={local}")
    return world // local, local


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: 'gpu[003-007,9],cpu1' is gpu003."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodelist)
    assert match, nodelist
    return match[1] + (match[2] or "")


def run_joined(cell: Cell) -> Result | None:
    """Run the worker in this process; the result on rank 0, None elsewhere. RunFailed if it raises."""
    from bagua_bench.launch.failures import RunFailed
    from bagua_bench.worker.progress import Progress
    from bagua_bench.worker.rank import train

    try:
        return train(cell, Progress(None))
    except Exception as error:
        raise RunFailed(f"rank {os.environ['RANK']}: {type(error).__name__}: {error}") from error
