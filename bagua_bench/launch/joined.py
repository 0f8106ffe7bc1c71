"""Takes part in an existing job: torchrun or Slurm has started the command itself on every rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

_PORTS = range(12_000, 32_000)  # below those that Linux gives to outgoing connections
_STEPS = 64  # of one job; more may have ports that another job has


def is_joined(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one rank of a torchrun or Slurm job."""
    return "RANK" in env or ("SLURM_STEP_ID" in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1)


def is_recorder(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process decides what is run, shows and records it: rank 0 of a job, or the only process."""
    return not is_joined(env) or env.get("RANK", env.get("SLURM_PROCID")) == "0"


def refuse(env: Mapping[str, str] = os.environ) -> None:
    """ValueError where the command runs once in a Slurm job of several tasks: the others would be waited for."""
    tasks = int(env.get("SLURM_NTASKS", "1"))
    if "SLURM_PROCID" in env and "SLURM_STEP_ID" not in env and "RANK" not in env and tasks > 1:
        raise ValueError(
            f"SLURM_NTASKS={tasks}: a batch script runs once, not once per task; write srun in front of the command, "
            "or submit the script with one task to run on its node alone"
        )


def enter(env: MutableMapping[str, str] = os.environ) -> tuple[int, int]:
    """Translate Slurm's variables to torchrun's, and limit threads; return servers and ranks per server.

    It must come before torch is imported, which reads how many threads it may have. ValueError if the job's tasks are
    not spread equally over its nodes, or where a launcher has set RANK and not all else that torchrun sets.
    """
    if "RANK" not in env:
        env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]
        env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"] = env["SLURM_LOCALID"], str(_tasks_per_node(env))
        env.setdefault("MASTER_ADDR", first_host(env["SLURM_STEP_NODELIST"]))
        env.setdefault("MASTER_PORT", str(_port(int(env["SLURM_JOB_ID"]), int(env["SLURM_STEP_ID"]))))
    if missing := [name for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE") if name not in env]:
        raise ValueError(f"RANK={env['RANK']}: {' and '.join(missing)} must be set, too, as torchrun does")
    world, local = int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"])
    if world % local:
        raise ValueError(f"WORLD_SIZE={world}: must be a multiple of LOCAL_WORLD_SIZE={local}")
    env.setdefault("OMP_NUM_THREADS", str(_threads(local, env)))
    return world // local, local


def _tasks_per_node(env: Mapping[str, str]) -> int:
    """Of a step, from Slurm's '2(x3)'."""
    given = env["SLURM_STEP_TASKS_PER_NODE"]
    counts = {int(re.sub(r"\(.*", "", part)) for part in given.split(",")}
    if len(counts) > 1:
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE={given}: all nodes must have as many tasks; give srun --ntasks-per-node"
        )
    return counts.pop()


def _port(job: int, step: int) -> int:
    """Where rank 0 listens: steps of a job, and jobs that follow each other, have ports of their own."""
    return _PORTS[(job * _STEPS + step) % len(_PORTS)]


def _threads(local: int, env: Mapping[str, str]) -> int:
    """Threads of a rank: the cores that Slurm gives to a task, or an equal share of those that its node may use."""
    if "SLURM_CPUS_PER_TASK" in env:
        return int(env["SLURM_CPUS_PER_TASK"])
    cores = min(int(env.get("SLURM_CPUS_ON_NODE", os.cpu_count() or 1)), os.cpu_count() or 1)
    return max(1, min(cores // local, len(os.sched_getaffinity(0))))


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: 'gpu[003-007,9],cpu1' is gpu003."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", nodelist)
    assert match, nodelist
    return match[1] + (match[2] or "")
