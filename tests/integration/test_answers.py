"""What advice says of a model of one's own: beside what it is faster, at what cost, why, and what would change it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bagua_bench.advise import levers, ranking, short
from bagua_bench.advise.answer import memory
from bagua_bench.configuration import units
from bagua_bench.configuration.validate import validate
from tests.catalogue import resolved
from tests.integration.cli import bench, recorded
from tests.integration.test_advise import BASE, command, row, said

OWN = ["model.parameters=1.3e9", "task.step_seconds=400ms", "task.batch=8", "cluster.servers=4"]
OWN += ["cluster.ranks_per_server=8", "network.bandwidth=100gbit", "network.latency=0.05ms"]


def test_a_model_of_ones_own_by_its_number_of_parameters(tmp_path: Path) -> None:
    done = command(tmp_path, "bagua_bench.advise", *OWN)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("a model of 1,300,000,000 parameters (assumed: 25 transformer blocks of width 1,999")
    assert "batch 8, 4 servers x 8 ranks; 400 ms of computing (task.step_seconds); 100 Gbit/s" in lines[0]
    said = {line.partition(":")[0]: line for line in lines}
    first = said["fastest of those that learn what DDP learns"]
    assert "times DDP at its best (" in first and "times DDP at its defaults" in first and "times ddp_fp16" in first
    assert "20.8 GB a rank for weights, gradients and AdamW in fp32" in said["memory"], "16 bytes per parameter"
    assert "with twice the bandwidth" in said["limits"] and "; ddp: " in said["limits"]
    assert "DDP is as fast as" in said["turns"] or "times DDP" in said["turns"]
    assert "compute.shrink=400" in said["check, emulated here"]
    assert "Engine(model, optimizer, algorithms." in said["in your training, beside DDP"]
    assert not any(" epoch " in line for line in lines), "nobody said how many samples there are"
    given = command(tmp_path, "bagua_bench.advise", "--json", *OWN)
    found = json.loads(given.stdout)
    assert found["assumed"]["parameters"] == 1_300_000_000
    assert found["fastest"]["memory"] == {
        "weights": 5.2e9, "gradients": 5.2e9, "optimizer": 10.4e9, "kind": "AdamW", "state": 0.0
    }  # fmt: skip
    ratios = found["fastest"]["times_as_fast_as"]
    assert f"{ratios['ddp_at_its_best']:.3g} times DDP at its best" in first
    assert f"{ratios['ddp_at_its_defaults']:.3g} times DDP at its defaults" in first
    assert ratios["ddp_at_its_defaults"] >= ratios["ddp_at_its_best"] > ratios["ddp_fp16"]
    assert found["fastest"]["algorithm"] in first
    stale = [row["stale_steps"] for row in found["learning_something_else"] if row["algorithm"] == "async"]
    assert stale[0] > 0


def test_short_keys_of_a_model_are_those_of_its_task() -> None:
    described = ["task=own", "task.parameters=1e9", "network=1gbit"]
    assert short.expanded(["model.parameters=1e9", "network=1gbit"]) == described
    assert short.expanded(["task.parameters=1e9", "network=1gbit"]) == described
    assert short.expanded(["model=torchvision:resnet50"]) == ["task=own", "task.model=torchvision:resnet50"]
    for whole in (described, ["task=vgg16", "network=1gbit"], []):
        assert short.expanded(whole) == whole


def test_the_emulation_that_checks_an_advice_can_be_run(tmp_path: Path) -> None:
    """Every command of the answer is a valid cell, of the algorithm and the buckets that were simulated."""
    found = json.loads(command(tmp_path, "bagua_bench.advise", "--json", *OWN).stdout)
    cells = [resolved(*line.split()[2:]) for line in found["check"]]
    for cell in cells:
        validate(cell)
        assert (cell.mode, cell.cluster.ranks, cell.network.latency) == ("emulate", 4, pytest.approx(5e-5))
        assert cell.task.options["parameters"] == 1.3e9 and cell.task.step_seconds == 0.4
    assert [cell.algo.name for cell in cells] == [found["fastest"]["algorithm"], "ddp"]
    sizes = [units.text(cell.run.bucket_size, units.BYTES) for cell in cells if cell.run.bucket_size]
    assert sizes == [] or sizes[0].replace("MiB", " MiB") == found["fastest"]["bucket"]


def test_a_described_model_is_emulated(tmp_path: Path) -> None:
    """A ring of two ranks: each sends 2 x 1/2 of 4 bytes per parameter."""
    asked = ["mode=emulate", "task=own", "task.parameters=1e6", "task.step_seconds=10ms", "algo=ddp"]
    done = bench(tmp_path, *asked, "run.steps=2", "run.warmup=1")
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = recorded(tmp_path)
    assert record["status"] == "done"
    assert sum(record["result"]["bytes_per_step"][0].values()) == pytest.approx(4e6, rel=1e-3)
    assert "epoch" not in done.stdout


NOTHING = (*BASE, "algo=ddp", "network.tcp_window=1GiB", "run.steps=1", "run.untimed=0")


def test_levers_help_where_they_should() -> None:
    """Where computing takes nothing a step is its bytes, where the network is wide it is its computing."""
    sending = levers.levers(resolved(*NOTHING, "task.step_seconds=1us", "network.bandwidth=1gbit"))
    assert sending["bandwidth"] == pytest.approx(2, rel=0.01)
    assert sending["latency"] == pytest.approx(1, abs=0.05) and sending["computing"] == pytest.approx(1, abs=0.05)
    computing = levers.levers(resolved(*NOTHING, "task.step_seconds=100s", "network.bandwidth=10gbit"))
    assert computing["computing"] == pytest.approx(2, rel=0.01)
    assert computing["bandwidth"] == pytest.approx(1, abs=0.05)
    waiting = levers.levers(
        resolved(*NOTHING, "task.step_seconds=1us", "network.latency=100ms", "network.bandwidth=10gbit")
    )
    assert max(waiting, key=waiting.__getitem__) == "latency"


@pytest.mark.parametrize("bandwidth", ["1gbit", "900gbit"])
def test_at_the_bandwidth_where_the_answer_turns_both_are_as_fast(bandwidth: str) -> None:
    """As the ranking finds with that network, whether it lies above or below the one at hand."""
    wide = [f"cluster.physics.{key}=1e12" for key in ("ring", "process", "window")]
    base = [*BASE, *wide, "task.step_seconds=100ms", f"network.bandwidth={bandwidth}"]
    turn = levers.crossing([resolved(*base, "algo=ddp_fp16")], [resolved(*base, "algo=ddp")])
    assert turn.upwards == (bandwidth == "1gbit")
    assert turn.bandwidth is not None
    there = [*base[:-1], f"network.bandwidth={turn.bandwidth / 1e9:.6g}gbit"]
    half, whole = (ranking.advise([resolved(*there, f"algo={algo}")])[0] for algo in ("ddp_fp16", "ddp"))
    assert whole.step_seconds / half.step_seconds == pytest.approx(levers.AS_GOOD, abs=0.05)


def test_a_model_that_nothing_is_faster_for_turns_at_no_bandwidth() -> None:
    """Against itself."""
    cell = resolved(*BASE, "algo=ddp", "network.bandwidth=1gbit")
    turn = levers.crossing([cell], [cell])
    assert (turn.upwards, turn.bandwidth, turn.both, turn.ratio) == (False, None, None, pytest.approx(1))


def test_software_that_is_slower_than_the_line_is_the_limit() -> None:
    """A ring of 1 Gbit/s on a line of 100: a wider line changes nothing, and a turn takes both."""
    slow = [*BASE, "task.step_seconds=100ms", "network.bandwidth=100gbit", "cluster.physics.ring=125e6"]
    found = levers.levers(resolved(*slow, "algo=ddp"))
    assert found["software"] == pytest.approx(2, rel=0.05)
    assert found["bandwidth"] == pytest.approx(1, rel=0.01)
    turn = levers.crossing([resolved(*slow, "algo=ddp_fp16")], [resolved(*slow, "algo=ddp")])
    assert (turn.upwards, turn.bandwidth) == (True, None)
    assert turn.both is not None and 10 < turn.both < 200, "4.4 s of sending beside 0.1 s of computing"


def test_what_an_algorithm_keeps_is_said_in_bytes() -> None:
    """VGG16's 138,357,544 parameters, SGD with momentum; decentralized SGD keeps an average of the weights."""
    weights = 4 * 138_357_544
    kept = memory(resolved(*BASE, "algo=decentralized"))
    assert (kept.weights, kept.gradients, kept.optimizer, kept.state) == (weights,) * 4
    assert memory(resolved(*BASE, "algo=ddp")).state == 0
    lines = said(row("decentralized", 1.0, same_update=False), row("ddp", 4.0))
    assert "decentralized: keeps 553.4 MB a rank besides weights, gradients and optimizer" in lines
    assert "memory: 1.66 GB a rank for weights, gradients and SGD momentum in fp32; ddp keeps nothing more" in lines


def test_ddp_at_its_defaults_and_at_its_best_and_its_hook_are_told_apart() -> None:
    best = {"cell": resolved(*BASE, "algo=ddp", "algo.bucket_cap_mb=100"), "bucket": "100 MiB"}
    rows = [row("bytegrad", 1.0), row("ddp_fp16", 2.0, same_update=True), row("ddp", 3.0, **best), row("ddp", 5.0)]
    line = said(*rows)[3]
    assert "3 times DDP at its best (2.4 to 3.75), 5 times DDP at its defaults, 2 times ddp_fp16" in line


def test_staleness_stands_beside_the_name_wherever_it_does() -> None:
    late = row("async", 0.1, round_seconds=12.1, staleness_steps=22.04)
    lines = [line for line in said(late, row("ddp", 4.0)) if "async" in line and not line.startswith("async:")]
    assert len(lines) == 2 and all("22 steps stale" in line for line in lines)
    assert any(line.split()[:4] == ["async", "(22", "steps", "stale)"] for line in lines)


def test_what_was_not_measured_of_learning_is_said_so() -> None:
    measured = said(row("bytegrad", 1.0), row("ddp", 2.0))
    assert "learning: bytegrad: 94.2 % (91.9 to 95.6) of held-out digits where ddp has 94.7 %" in "\n".join(measured)
    unknown = said(row("ddp_fp16", 1.0, same_update=True), row("ddp", 2.0))
    assert "learning: not measured" in unknown
    other = "\n".join(said(row("qadam", 1.0), row("ddp", 2.0)))
    assert "\nqadam: 97.4 % (97.2 to 97.5) of held-out digits where ddp has 94.7 %" in other
