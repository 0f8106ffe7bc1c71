"""The command in jobs of a real Slurm of two nodes, which these tests bring up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli import COMMAND, TINY, recorded, wait_for
from tests.slurm import Slurm, cluster, why_not

HOME = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(HOME)}

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


def test_two_tasks_on_each_of_two_nodes_are_one_run(slurm: Slurm, tmp_path: Path) -> None:
    run = ["srun", "-N2", "-n4", "--ntasks-per-node=2", *COMMAND, *TINY, "run.steps=5"]
    done = slurm.run(*run, folder=tmp_path, env=ENV)
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert (record["status"], record["ranks"]) == ("done", 4)
    assert (record["config"]["cluster"]["servers"], record["config"]["cluster"]["ranks_per_server"]) == (2, 2)
    assert record["environment"]["OMP_NUM_THREADS"] == "1", "two ranks of a node share its two cores"
    assert done.stdout.count("exposed communication") == 1
    assert "quadratic bytegrad over gloo, 4 ranks: timed" in done.stderr, "a joined run says what it does"


def test_threads_are_those_that_slurm_gives_to_a_task(slurm: Slurm, tmp_path: Path) -> None:
    done = slurm.run("srun", "-N2", "-n2", "--cpus-per-task=2", *COMMAND, *TINY, folder=tmp_path, env=ENV)
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["environment"]["OMP_NUM_THREADS"] == "2"


def test_two_steps_of_a_job_do_not_meet(slurm: Slurm, tmp_path: Path) -> None:
    """Side by side, on the same nodes, each with a folder of its own."""
    commands = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run = shlex.join([*COMMAND, *TINY, "run.steps=20"])
        commands.append(f'srun --overlap -N2 -n2 --chdir={tmp_path / name} {run} & pids="$pids $!"')
    script = "\n".join([*commands, "code=0; for pid in $pids; do wait $pid || code=1; done; exit $code"])
    done = slurm.run("salloc", "-N2", "-n2", "sh", "-c", script, folder=tmp_path, env=ENV)
    assert done.returncode == 0, done.stderr
    for name in ("first", "second"):
        assert [(r["status"], r["ranks"]) for r in recorded(tmp_path / name)] == [("done", 2)]


def test_the_bare_command_in_a_batch_script_of_several_tasks_is_refused(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{shlex.join([*COMMAND, *TINY])}\necho exit code $?\n")
    sent = slurm.run("sbatch", "-n2", "--output=out", str(script), folder=tmp_path, env=ENV)
    assert sent.returncode == 0, sent.stderr
    out = tmp_path / "out"
    wait_for(lambda: out.exists() and "exit code" in out.read_text().rpartition("\n")[0])
    first, last = out.read_text().splitlines()
    assert first.startswith("SLURM_NTASKS=2: ") and "srun" in first and last == "exit code 2"
    assert recorded(tmp_path) == []


def test_a_rank_that_fails_is_named_and_the_job_fails(slurm: Slurm, tmp_path: Path) -> None:
    bad = ["task=vgg16", "task.scale=tiny", "task.lr=1e30", "run.steps=10", "algo=bytegrad", "run.timeout=20s"]
    done = slurm.run("srun", "-N2", "-n2", *COMMAND, *TINY, *bad, folder=tmp_path, env=ENV)
    assert done.returncode != 0
    [record] = recorded(tmp_path)
    assert record["status"] == "failed" and record["reason"].startswith("rank ")
    assert "MinMaxUInt8: the tensor holds NaN or Inf" in record["reason"]


def test_a_wrong_key_is_said_once_not_by_every_rank(slurm: Slurm, tmp_path: Path) -> None:
    done = slurm.run("srun", "-N2", "-n2", *COMMAND, *TINY, "run.steps=0", folder=tmp_path, env=ENV)
    assert done.returncode == 2 and done.stderr.count("run.steps=0: must be at least 1") == 1
