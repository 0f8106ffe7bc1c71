"""Real runs through the front door: torchrun, processes, gloo, records."""

from __future__ import annotations

import json
import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from tests.catalogue import declared, runnable
from tests.integration.cli import COMMAND, PATIENCE, TINY, bench, leftovers, python, recorded
from tests.warm import client as warm


@pytest.mark.parametrize("algo", runnable())
def test_every_algorithm_from_any_directory(tmp_path: Path, algo: str) -> None:
    done = bench(tmp_path, *TINY, f"algo={algo}", cold=algo == "bytegrad")
    assert done.returncode == 0, done.stderr
    for text in ("throughput", "95 %", "exposed communication", "per step and rank", "projected", "records.jsonl"):
        assert text in done.stdout
    assert f"quadratic {algo} over gloo, 2 ranks: timed" in done.stderr, "no sign of progress without a terminal"
    [record] = recorded(tmp_path)
    assert (record["status"], record["source"], record["ranks"]) == ("done", "measured", 2)
    result = record["result"]
    assert len(result["step_seconds"]) == len(result["losses"])
    if declared(algo).rounds:  # enough steps for the averages to be meaningful
        assert result["averaging"]["rounds"] >= declared(algo).rounds and len(result["losses"]) >= 3
        assert "rounds, one every" in done.stdout and "steps old" in done.stdout
    else:
        period = declared(algo).period
        assert len(result["losses"]) == -(-3 // period) * period, "whole periods"
    assert result["throughput"] == pytest.approx(2 * len(result["losses"]) / sum(result["step_seconds"]))
    assert result["throughput_interval"][0] <= result["throughput"] <= result["throughput_interval"][1]
    assert result["losses"][0] > result["losses"][-1]
    assert result["synthetic"] is True
    assert record["config"]["algo"]["name"] == algo
    assert leftovers(tmp_path) == []


def test_real_data_and_accuracy(tmp_path: Path) -> None:
    done = bench(tmp_path, "task=vgg16", "task.scale=tiny", "algo=gradient_allreduce", "run.steps=60", "run.warmup=1")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    assert record["result"]["synthetic"] is False
    assert record["result"]["metrics"]["top1"] > 0.3
    assert record["result"]["parameters"] == 268_978
    per_rank = 2 * (2 - 1) / 2 * 4 * 268_978
    for sent in record["result"]["bytes_per_step"]:
        assert sent["flat"] == pytest.approx(per_rank, rel=1e-4)


def test_ddp_and_gradient_allreduce_send_and_learn_the_same(tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        "-m",
        "task=vgg16",
        "task.scale=tiny",
        "algo=ddp,gradient_allreduce",
        "run.steps=5",
        "run.evaluate=false",
    )
    assert done.returncode == 0, done.stderr
    ddp, ours = (record["result"] for record in recorded(tmp_path))
    assert ours["losses"] == pytest.approx(ddp["losses"], rel=1e-4)
    assert ours["bytes_per_step"][0]["flat"] == pytest.approx(ddp["bytes_per_step"][0]["flat"], rel=1e-3)


def test_a_fused_optimizer_learns_what_torchs_own_kernel_does(tmp_path: Path) -> None:
    """They round differently; the warm-up, which is undone, leaves no trace in the fused state."""
    given = ["task=vgg16", "task.scale=tiny", "algo=gradient_allreduce", "run.steps=5", "run.evaluate=false"]
    assert bench(tmp_path, "-m", "run.fused_optimizer=false,true", *given).returncode == 0
    theirs, ours = recorded(tmp_path)
    assert ours["config"]["run"]["fused_optimizer"] is True and "fused_optimizer" not in theirs["config"]["run"]
    assert ours["result"]["losses"] == pytest.approx(theirs["result"]["losses"], rel=1e-4)


@pytest.mark.parametrize("mode", ["measure", "emulate", "simulate"])
def test_a_trace_of_every_mode(tmp_path: Path, mode: str) -> None:
    """Its steps are the record's, and its collectives carry what the record says was sent."""
    cluster = ["cluster=local", "compute=v100", "compute.shrink=1000"] if mode != "measure" else []
    given = ["task=vgg16", "task.scale=tiny", "algo=gradient_allreduce", "run.steps=3", "run.evaluate=false", *cluster]
    done = bench(tmp_path, f"mode={mode}", *given, "run.trace=true", "run.bucket_size=512KiB", "run.channels=2")
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    [path] = tmp_path.rglob("traces/*.json")
    assert record["result"]["trace"] == f"traces/{path.name}" and f"trace: {path}" in done.stdout
    spans = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    ranks = {event["pid"] for event in spans}
    assert ranks == ({0} if mode == "simulate" else {0, 1})
    ends = [max(e["ts"] + e["dur"] for e in spans if e["pid"] == rank and e["name"] == "step") for rank in ranks]
    taken = sum(record["result"]["step_seconds"])
    assert max(ends) / 1e6 >= taken - 1e-6, "it also shows pauses between steps"
    assert mode != "simulate" or max(ends) / 1e6 == pytest.approx(taken, abs=1e-6)
    given_to = sum(e["args"]["bytes"] for e in spans if e["name"] == "all_reduce" and not e["pid"])
    assert given_to == pytest.approx(3 * record["result"]["bytes_per_step"][0]["flat"], rel=1e-2), "of two ranks"


def test_a_trace_shows_what_the_streams_carry(tmp_path: Path) -> None:
    given = ["task=vgg16", "task.scale=tiny", "algo=gradient_allreduce", "transport=bagua_net", "run.evaluate=false"]
    done = bench(tmp_path, *given, "run.steps=3", "run.trace=true", env={"BAGUA_NET_INTERFACES": "lo"})
    assert done.returncode == 0, done.stderr
    [record] = recorded(tmp_path)
    [path] = tmp_path.rglob("traces/*.json")
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "C" and e["pid"] == 0]
    counters = [event for event in events if event["name"].startswith("MB/s")]  # busy cores also send segments again
    assert {event["name"] for event in counters} == {"MB/s to rank 1"}
    carried = sum(
        (later["ts"] - one["ts"]) * sum(one["args"].values())
        for one, later in pairwise(sorted(counters, key=lambda event: event["ts"]))
    )
    assert carried == pytest.approx(3 * record["result"]["bytes_per_step"][0]["flat"], rel=0.05), "and headers"


def test_sums_of_8_bits_are_named_and_counted(tmp_path: Path) -> None:
    given = ["task=vgg16", "task.scale=tiny", "algo=gradient_allreduce", "transport=bagua_net", "run.steps=3"]
    for wire in ("null", "int8"):
        done = bench(tmp_path, *given, f"transport.wire={wire}", env={"BAGUA_NET_INTERFACES": "lo"})
        assert done.returncode == 0, done.stderr
    exact, lossy = recorded(tmp_path)
    assert "wire" not in exact["config"]["transport"]
    assert lossy["config"]["transport"]["wire"] == "int8"
    assert exact["cell"] != lossy["cell"]
    ratio = lossy["result"]["bytes_per_step"][0]["flat"] / exact["result"]["bytes_per_step"][0]["flat"]
    assert 0.25 < ratio < 0.3, "integers, their scales, and what is too small for them"
    assert lossy["result"]["checks"]["replicas"] == "equal"
    assert lossy["result"]["losses"] != exact["result"]["losses"]
    assert lossy["result"]["losses"] == pytest.approx(exact["result"]["losses"], rel=0.1)
    assert "over bagua_net int8" in done.stderr


def test_warm_up_leaves_no_trace(tmp_path: Path) -> None:
    """With given buckets: a measured size may make one bucket or two, which 8 bits round differently."""
    short = ["run.bucket_size=512KiB", "task=vgg16", "task.scale=tiny", "run.steps=4", "run.evaluate=false"]
    for warmup in (0, 4):
        assert bench(tmp_path, *short, f"run.warmup={warmup}").returncode == 0
    cold, warm = recorded(tmp_path)
    assert (cold["result"]["warmup_steps"], warm["result"]["warmup_steps"]) == (0, pytest.approx(10, abs=6))
    assert warm["result"]["losses"] == pytest.approx(cold["result"]["losses"], rel=1e-5)


def test_gradient_accumulation_counts_all_samples(tmp_path: Path) -> None:
    assert bench(tmp_path, *TINY, "run.accumulate=3").returncode == 0
    [record] = recorded(tmp_path)
    assert record["result"]["samples_per_step"] == 6


def test_a_failing_rank_is_named_with_its_reason(tmp_path: Path) -> None:
    done = bench(tmp_path, *TINY, "task=vgg16", "task.scale=tiny", "task.lr=1e30", "run.steps=10", "algo=bytegrad")
    assert done.returncode == 1
    [record] = recorded(tmp_path)
    assert record["status"] == "failed"
    assert "ValueError: MinMaxUInt8: the tensor holds NaN or Inf" in record["reason"]
    assert record["reason"].startswith("rank ")
    assert "MinMaxUInt8" in next((tmp_path / "results" / "runs" / "logs").iterdir()).read_text()
    assert leftovers(tmp_path) == []


def test_a_run_that_diverges_is_wrong_not_done(tmp_path: Path) -> None:
    done = bench(tmp_path, *TINY, "task=quadratic", "task.lr=1e30", "run.steps=10", "algo=gradient_allreduce")
    assert done.returncode == 1
    [record] = recorded(tmp_path)
    assert (record["status"], record["reason"]) == ("wrong", "the weights hold NaN or Inf")


def test_inside_torchrun_the_command_joins_the_job(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = python(tmp_path, *torchrun, *COMMAND[1:], *TINY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exposed communication") == 1
    [record] = recorded(tmp_path)
    assert (record["status"], record["ranks"]) == ("done", 2)
    assert record["config"]["cluster"]["ranks_per_server"] == 2, "the job's layout, not the configuration's"


def test_a_campaign_inside_torchrun_runs_all_its_cells_in_the_same_processes(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    tiny = ["task=quadratic", "run.steps=2", "run.warmup=1", "network.backend=none", "campaign.rounds=3"]
    done = python(tmp_path, *torchrun, *COMMAND[1:], "campaign=quick", "algo=bytegrad", *tiny)
    assert done.returncode == 0, done.stderr
    assert [(record["status"], record["round"]) for record in recorded(tmp_path, "quick")] == [
        ("done", 0),
        ("done", 1),
        ("done", 2),
    ]


def test_inside_slurm_the_command_joins_the_job(tmp_path: Path) -> None:
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),  # which decides on the port
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    with Path(os.devnull).open("wb") as nothing:
        tasks = []
        for rank in ("0", "1"):
            env = {**slurm, "GLOO_SOCKET_IFNAME": "lo", "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
            tasks.append(warm.start(tmp_path, *COMMAND[1:], *TINY, out=nothing, err=nothing, env=env))
        assert [task.wait(PATIENCE) for task in tasks] == [0, 0]
    [record] = recorded(tmp_path)
    assert (record["status"], record["ranks"]) == ("done", 2)


def test_a_job_with_unequal_servers_ends_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    with Path(os.devnull).open("wb") as nothing, (tmp_path / "said").open("wb") as said:
        tasks = []
        for rank, local in (("0", "1"), ("1", "2")):
            env = {**meeting, "RANK": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": local}
            cells = ("-m", *TINY, "algo=ddp,bytegrad")
            tasks.append(warm.start(tmp_path, *COMMAND[1:], *cells, out=nothing, err=said, env=env))
        assert [task.wait(PATIENCE) for task in tasks] == [1, 1]
    assert "without a word" not in (tmp_path / "said").read_text()
    found = recorded(tmp_path)
    assert [record["status"] for record in found] == ["failed"] * 2
    for record in found:
        assert record["reason"] == "LOCAL_WORLD_SIZE=1 at rank 0, but 2 at rank 1: must be equal everywhere"


def test_a_campaign_resumes_where_it_stopped(tmp_path: Path) -> None:
    arguments = ["campaign=quick", "campaign.rounds=2", "algo=bytegrad", "task=quadratic", "run.steps=2"]
    path = tmp_path / "results" / "quick" / "records.jsonl"
    assert bench(tmp_path, *arguments).returncode == 0
    assert [r["round"] for r in recorded(tmp_path, "quick")] == [0, 1]
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n" + lines[1][:50])  # interrupted while writing the second record
    assert bench(tmp_path, *arguments).returncode == 0
    assert [r["round"] for r in recorded(tmp_path, "quick")] == [0, 1]
    assert bench(tmp_path, *arguments).returncode == 0
    assert len(recorded(tmp_path, "quick")) == 2, "nothing was left to do"


def test_a_dry_run_shows_the_cells_and_the_time_and_starts_nothing(tmp_path: Path) -> None:
    arguments = ["campaign=quick", "campaign.rounds=2", "task=quadratic", "run.steps=2"]
    axes = "campaign.axes=['algo=ddp,bytegrad','network.bandwidth=100mbit,1gbit']"
    asked = bench(tmp_path, *arguments, "campaign.dry_run=true", axes)
    assert asked.returncode == 0, asked.stderr
    assert "8 runs to do" in asked.stdout and "unknown" in asked.stdout
    assert all(text in asked.stdout for text in ("ddp", "bytegrad", "100mbit", "1gbit"))
    assert recorded(tmp_path, "quick") == []
    assert bench(tmp_path, "algo=bytegrad", *arguments).returncode == 0
    asked = bench(
        tmp_path, "algo=bytegrad", *arguments[:1], "campaign.rounds=3", *arguments[2:], "campaign.dry_run=true"
    )
    assert "1 runs to do; time: about" in asked.stdout


def test_a_campaign_goes_on_after_a_failure_and_reports_it_at_the_end(tmp_path: Path) -> None:
    failing = "algo=gradient_allreduce,bytegrad"
    done = bench(tmp_path, "-m", "task=quadratic", "run.steps=3", "task.lr=1e30", failing)
    assert done.returncode == 1
    assert len(recorded(tmp_path)) == 2
    assert done.stderr.count("failed: quadratic") == 2


def test_a_run_tunes_itself_before_its_timed_steps(tmp_path: Path) -> None:
    options = [*TINY, "algo=bytegrad", "tune.max_samples=3", "tune.sample_steps=1"]
    found = []
    for name, more in (("plain", []), ("tuned", ["run.autotune=true"])):
        (tmp_path / name).mkdir()
        done = bench(tmp_path / name, *options, *more)
        assert done.returncode == 0, done.stderr
        found += recorded(tmp_path / name)
    plain, tuned = found
    study = tuned["result"]["study"]
    assert "study" not in plain["result"] and plain["cell"] != tuned["cell"]
    assert len(study["trials"]) == 3 and study["ends"][0] == 7
    steps = [end - begin for begin, end in pairwise(study["ends"])]
    assert set(steps) <= {1, 2}, "one step that is not counted, and one that is unless the first was hopeless"
    assert study["best"] == max(study["trials"], key=lambda trial: trial["score"])["values"]
    assert tuned["result"]["sending"]["channels"] == study["best"]["channels"]
    assert tuned["result"]["losses"] == pytest.approx(plain["result"]["losses"], rel=1e-2), "tuning was undone"
