"""What the command reads from the variables of torchrun and Slurm."""

from __future__ import annotations

import os

import pytest

from bagua_bench.launch import joined

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
}


def test_a_slurm_step_looks_like_torchruns_job() -> None:
    env = dict(STEP)
    assert joined.is_joined(env) and not joined.is_recorder(env)
    assert joined.enter(env) == (2, 2)
    assert {key: env[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu003",
    }


def test_steps_of_a_job_and_jobs_in_a_row_have_ports_of_their_own() -> None:
    found = []
    for job in (7, 8, 9):
        for step in range(64):
            env = STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
            joined.enter(env)
            found.append(int(env["MASTER_PORT"]))
    assert len({*found}) == len(found) and min(found) > 1024 and max(found) < 32768


def test_what_the_user_gave_stays() -> None:
    env = STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "5"}
    joined.enter(env)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["OMP_NUM_THREADS"]) == ("10.0.0.1", "29500", "5")


def test_threads_are_slurms_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))

    def threads(more: dict[str, str]) -> str:
        env = STEP | more
        joined.enter(env)
        return env["OMP_NUM_THREADS"]

    assert threads({"SLURM_CPUS_PER_TASK": "3"}) == "3"
    assert threads({}) == "4"
    assert threads({"SLURM_CPUS_ON_NODE": "4"}) == "2"
    assert threads({"SLURM_CPUS_ON_NODE": "1"}) == "1"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    assert threads({}) == "1"


def test_nodes_with_unequal_numbers_of_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"SLURM_STEP_TASKS_PER_NODE=2,1: all nodes"):
        joined.enter(STEP | {"SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NUM_TASKS": "3"})


def test_a_batch_script_of_several_tasks_is_refused_a_step_is_not() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert not joined.is_joined(batch)
    with pytest.raises(ValueError, match=r"SLURM_NTASKS=2: .*srun"):
        joined.refuse(batch)
    for fine in ({}, {**batch, "SLURM_NTASKS": "1"}, STEP, {**batch, "RANK": "0"}):
        joined.refuse(fine)


def test_node_lists() -> None:
    assert joined.first_host("gpu[003-007,9],cpu1") == "gpu003"
    assert joined.first_host("node7,node8") == "node7"
    assert joined.first_host("n-[1,3]") == "n-1"


def test_a_launcher_sets_all_that_torchrun_does() -> None:
    with pytest.raises(ValueError, match="RANK=0: WORLD_SIZE and LOCAL_WORLD_SIZE must be set, too"):
        joined.enter({"RANK": "0"})
