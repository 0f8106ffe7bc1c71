"""Advice and calibration through their commands."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir

from bagua_bench.advise import candidates, checks, prepare, ranking, reasons, words
from bagua_bench.advise.assumptions import assumptions
from bagua_bench.campaign.cells import expand
from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.validate import validate
from bagua_bench.results import records
from bagua_bench.simulate.run import simulate
from tests.catalogue import composed, declared, options, resolved
from tests.integration.cli import python

BASE = ("mode=simulate", "task=vgg16", "run.steps=2", "run.untimed=1")
MODERN = (*BASE, "cluster=h100_estimate", "compute=h100_published", "network.bandwidth=10gbit")


def command(folder: Path, *arguments: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", *arguments, cold=cold)


def one(*overrides: str) -> Any:
    """The row of advice for one cell, in its first form, with what the engine chooses."""
    cell = resolved(*overrides)
    form = next(candidates.forms(cell, cell.algo.name))
    [row] = ranking.advise([next(candidates.ways(form))])
    return row


def steps(*overrides: str) -> list[float]:
    return [step["step"] for step in simulate(resolved(*overrides)).ranks[0].seconds]


def row(algorithm: str, seconds: float, **other: Any) -> ranking.Row:
    """A made-up row of `ranking.advise`."""
    usual: dict[str, Any] = {
        "same_update": algorithm in ("ddp", "bytegrad"),
        "steps": 2,
        "warm_up": 0.0,
        "note": "",
        "between": "ranks",
        "transport": "gloo",
        "bucket": "10 MiB",
        "channels": "1",
        "epoch_seconds": 100 * seconds,
        "round_seconds": math.nan,
        "staleness_steps": math.nan,
        "cell": resolved(*BASE, f"algo={algorithm}"),
    }
    return ranking.Row(algorithm=algorithm, step_seconds=seconds, **{**usual, **other})


def said(*rows: ranking.Row, base: Cell | None = None) -> list[str]:
    return words.report(rows, base or resolved(*BASE)).splitlines()


def test_advice_ranks_and_explains(tmp_path: Path) -> None:
    done = command(
        tmp_path, "bagua_bench.advise", "task=vgg16", "cluster=bagua_paper", "network.bandwidth=1gbit", cold=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for part in ("vgg16", "16 servers x 8 ranks", "compute=v100", "1 Gbit/s", "latency", "cluster=bagua_paper", "±16%"):
        assert part in lines[0]
    assert lines[1].startswith("transport") and "nccl_bagua_net" in lines[1]
    same, other = (lines.index(title) for title in (words._SAME, words._OTHER))
    places = {line.split()[0]: number for number, line in reversed(list(enumerate(lines))) if line.strip()}
    assert same < places["bytegrad"] < places["gradient_allreduce"] < other
    assert same < places["ddp"] < other
    assert all(other < places[name] for name in ("qadam", "decentralized", "low_precision_decentralized", "async"))
    assert not set(places) & {name for name in options("algo") if not declared(name).advised}
    assert "bandwidth-bound" in done.stdout and "e+0" not in done.stdout
    assert sum(line.split()[:1] == ["ddp"] and "MiB" in line for line in lines) >= 1
    [best, more] = lines[3:5]
    assert (
        best.startswith("fastest of those that learn what DDP learns: bytegrad") and "times DDP at its best (" in best
    )
    assert more.startswith("faster, but learning something else: async") and "steps stale" in more
    assert any(line.startswith("async: never waits; an average comes every") for line in lines[other:])
    assert "qadam: 20% of the steps are its warm-up" in done.stdout
    assert max(len(line) for line in lines[same:]) <= 132


TRAINING = ("algo.warmup_steps=1", "run.steps=5", "run.untimed=0")


def test_qadam_is_rated_with_its_warm_up() -> None:
    """Its mean step is over one as long as gradient all-reduce's and four after the warm-up, and no others."""
    for form in candidates.forms(resolved(*MODERN, "algo=qadam", "cluster.servers=4"), "qadam"):
        assert (form.algo.options["warmup_steps"], form.run.steps, form.run.untimed) == (1, 5, 0)
    common = [*MODERN, "cluster.servers=4", "algo.hierarchical=true", "run.bucket_size=10MiB"]
    [row] = ranking.advise([resolved(*common, "algo=qadam", *TRAINING)])
    [warm] = steps(*MODERN, "cluster.servers=4", "algo=gradient_allreduce", "run.steps=1", "run.bucket_size=10MiB")
    [late] = steps(*common, "algo=qadam", "algo.warmup_steps=1", "run.untimed=3", "run.steps=1")
    assert warm > 3 * late
    assert row.step_seconds == pytest.approx((warm + 4 * late) / 5, rel=1e-12)
    assert row.warm_up == 0.2


@pytest.mark.parametrize("name", ["decision_map", "tradeoff_modern"])
def test_the_maps_hold_all_of_qadams_training(name: str) -> None:
    chosen = composed(f"campaign={name}").campaign
    with initialize_config_dir(str(conf_folder.FOLDER), version_base=None):
        cells = expand(chosen, ["network.bandwidth=10gbit", "task=vgg16"])
    cell = next(cell for cell in cells if cell.algo.name == "qadam")
    assert (cell.algo.options["warmup_steps"], cell.run.steps, cell.run.untimed) == (1, 5, 0)
    made = records.complete(records.make_record(cell, name, 0, datetime.now(timezone.utc)), simulate(cell))["result"]
    asked = ["mode=simulate", "task=vgg16", f"cluster={cell.cluster.name}", "transport=nccl", "run.steps=1"]
    asked += [f"cluster.servers={cell.cluster.servers}"]
    asked += ["network.bandwidth=10gbit", f"compute={cell.profile.name}", "run.bucket_size=10MiB", "run.channels=1"]
    [warm] = steps(*asked, "algo=gradient_allreduce")
    [late] = steps(*asked, "algo=qadam", "algo.warmup_steps=1", "run.untimed=1")
    assert made["step_seconds"] == pytest.approx([warm, late, late, late, late])
    assert made["throughput"] == pytest.approx(5 * made["samples_per_step"] / (warm + 4 * late))


@pytest.mark.parametrize(
    ("algo", "bucket"), [("ddp", "25 MiB"), ("bytegrad", "1 MiB"), ("async", "one"), ("decentralized", "one")]
)
def test_buckets_are_those_that_are_simulated(algo: str, bucket: str) -> None:
    asked = (*BASE, f"algo={algo}", *(("run.bucket_size=1MiB", "run.channels=1") if algo == "bytegrad" else ()))
    for where in ("network.bandwidth=10gbit", "compute.shrink=100"):
        if where.startswith("network") or algo in ("ddp", "bytegrad"):
            [row] = ranking.advise([resolved(*asked, where)])
            assert row.bucket == bucket, "of the original, not its scale model"


def test_the_engines_own_choice_is_the_first_that_is_compared() -> None:
    """It is the one that the engine's rule makes, in the bytes of the original."""
    asked = (*BASE, "algo=bytegrad", "network.bandwidth=10gbit")
    sending = simulate(resolved(*asked)).sending
    assert sending is not None and sending.bucket_size is not None
    assert one(*asked).bucket == f"{sending.bucket_size / 2**20:.3g} MiB" and one(*asked).channels == "4"


def test_averages_of_async_are_as_old_as_their_way_is_long() -> None:
    """138 million parameters all-reduced by two ranks: each sends them once, 4.43 Gbit at 95 % of 1 Gbit/s."""
    found = one(*BASE, "algo=async", "network.bandwidth=1gbit")
    sending = 138_357_544 * 32 / 0.95e9
    assert found.staleness_steps == pytest.approx(sending / found.step_seconds, abs=1.1)
    assert found.round_seconds == pytest.approx(sending + 0.5, rel=0.05)
    assert one(*BASE, "algo=async", "network.bandwidth=1mbit").staleness_steps == float("inf")


def test_what_learns_as_ddp_does_comes_first_and_late_averages_are_told_with_the_name() -> None:
    late = row("async", 0.1, round_seconds=12.1, staleness_steps=22.04)
    lines = said(late, row("qadam", 1.0, warm_up=0.2), row("bytegrad", 2.0), row("ddp", 4.0))
    assert lines[3].startswith("fastest of those that learn what DDP learns: bytegrad")
    assert "2 times DDP at its best (1.6 to 2.5), 2 times DDP at its defaults" in lines[3]
    assert lines[4] == "faster, but learning something else: async, 22 steps stale (40), qadam (4)"
    assert "async: never waits; an average comes every 12.1 s and is then 22 steps old" in lines
    never = said(replace(late, staleness_steps=math.inf, steps=1000), row("ddp", 4.0))
    assert never[
        3
    ] == "fastest of those that learn what DDP learns: ddp with buckets of 10 MiB and 1 channel, than which " + (
        "nothing is faster"
    )
    assert "async: no average arrives within 1000 steps; every rank learns alone" in never


def test_one_line_says_what_was_assumed() -> None:
    guess = [*BASE, "cluster.ranks_per_server=4", "network.latency=2ms", "network.loss=1%", "task.step_seconds=0.2"]
    line = assumptions(resolved(*guess))
    assert line == (
        "vgg16, batch 32, 2 servers x 4 ranks; 200 ms of computing (task.step_seconds); 100 Gbit/s, "
        "latency 2 ms + 0.015 ms of the cluster, loss 1%, TCP windows of 4MiB; "
        "cluster=local, not calibrated: ±25% assumed"
    )


SITES = ("network.bandwidth=25gbit", "network.sites=2", "network.wan.bandwidth=1gbit", "network.wan.latency=15ms")


def test_sites_are_in_the_question_and_in_the_answer(tmp_path: Path) -> None:
    line = assumptions(resolved(*BASE, "cluster.servers=4", *SITES))
    assert "25 Gbit/s, latency 0 ms + 0.015 ms of the cluster, 2 sites, between them 1 Gbit/s and 15 ms, TCP" in line
    asked = command(tmp_path, "bagua_bench.advise", "task=vgg16", "cluster.servers=4", *SITES)
    assert asked.returncode == 0, asked.stderr
    assert " between the sites" in next(line for line in asked.stdout.splitlines() if line.startswith("turns:"))
    assert "network.sites=2 network.wan.bandwidth=1gbit network.wan.latency=15ms" in asked.stdout, "in the check"


@pytest.mark.parametrize(("servers", "sites", "checked"), [(6, 3, 3), (6, 2, 4), (5, 5, 5), (9, 1, 4)])
def test_the_check_has_as_many_servers_in_every_site(servers: int, sites: int, checked: int) -> None:
    given = ["network.bandwidth=25gbit", f"network.sites={sites}", "network.software_delay=true"]
    base = resolved(*BASE, f"cluster.servers={servers}", *given)
    asked = list(checks._where(base, given))
    assert f"cluster.servers={checked}" in asked and "network.software_delay=true" not in asked
    validate(resolved("task=vgg16", *asked))


def test_a_line_between_sites_slows_a_step_down() -> None:
    here = resolved(*BASE, "algo=ddp", "cluster.servers=4", *SITES[:1])
    there = resolved(*BASE, "algo=ddp", "cluster.servers=4", *SITES)
    near, far = (simulate(cell).ranks[0].seconds[0]["step"] for cell in (here, there))
    assert far > near + 6 / 4 * 4 * 138_357_544 * 8 / 1e9 - 0.5, "a ring's bytes at 1 Gbit/s, less what computing hides"


def test_what_the_model_cannot_tell_apart_is_said_so() -> None:
    fast, slow = row("bytegrad", 1.0), row("ddp", 4.0)
    assert said(fast, slow)[1] == (
        "transport: gloo; not modelled: bagua_net, nccl, nccl_bagua_net; cluster=local has no transport parameters"
    )
    paper = resolved(*BASE, "cluster=bagua_paper", "transport=gloo")
    knows = "has transport parameters for"
    rest = f"not modelled: bagua_net, nccl; cluster=bagua_paper {knows} nccl_bagua_net only"
    twice = [fast, slow, *(replace(one, transport="nccl_bagua_net") for one in (fast, slow))]
    lines = said(*twice, base=paper)
    assert lines[1] == f"transport: no difference between gloo and nccl_bagua_net here, by this model; {rest}"
    assert sum(line.split()[:1] == ["bytegrad"] and "MiB" in line for line in lines) == 1
    lines = said(*twice[:3], replace(twice[3], step_seconds=3.0), base=paper)
    assert lines[1] == f"transports compared: gloo, nccl_bagua_net; {rest}"
    assert sum(line.split()[:1] == ["bytegrad"] and "MiB" in line for line in lines) == 2
    emulated = said(fast, slow, base=resolved(*BASE, "cluster=local_emulated", "transport=gloo"))
    assert emulated[1].endswith(
        f"not modelled: nccl, nccl_bagua_net; cluster=local_emulated {knows} gloo, bagua_net only"
    )


def test_an_ideal_latency_under_loss_can_be_computed() -> None:
    assert "bound" in reasons.why(resolved(*BASE, "algo=bytegrad", "network.bandwidth=1gbit", "network.loss=1%"))


def test_windows_are_named_where_they_decide_and_what_larger_ones_would_do() -> None:
    far = (*BASE, "algo=decentralized", "cluster.servers=4", "network.bandwidth=100gbit", "network.latency=20ms")
    assert reasons.why(resolved(*far)).startswith("window-bound")
    assert not reasons.why(resolved(*far, "network.tcp_window=1GiB")).startswith("window")
    cell = resolved(*far)
    [found] = ranking.advise([cell])
    assert reasons.with_windows(cell, 16) < 0.3 * found.step_seconds
    lines = said(row("bytegrad", 1.0, cell=cell), row("ddp", 4.0))
    [line] = [line for line in lines if line.startswith("TCP windows are what is waited for")]
    assert "network.tcp_window=64MiB" in line and "more servers help" in line
    waits = row("bytegrad", 2.0, cell=resolved(*far))
    [line] = [line for line in said(row("ddp", 1.0), waits) if line.startswith("TCP windows are what is waited for")]
    assert line.endswith("by bytegrad: larger ones help, and more servers, as each has its own connections")


def test_an_odd_number_of_servers_is_as_good_as_any(tmp_path: Path) -> None:
    done = command(tmp_path, "bagua_bench.advise", "task=resnet50", "cluster.servers=3", "network.bandwidth=1gbit")
    assert done.returncode == 0, done.stderr
    assert "not compared" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.split()[:1] == ["decentralized"]]


def test_who_cannot_run_is_named_with_the_reason(tmp_path: Path) -> None:
    base = resolved(*BASE, "run.overlap=false")
    refused = candidates.candidates(base, [base.transport]).refused
    assert set(refused) == {"ddp", "ddp_fp16"}
    lines = words.report([row("bytegrad", 1.0), row("ddp", 4.0)], base, refused).splitlines()
    assert "not compared: run.overlap=false: belongs to Bagua's engine; algo=ddp has its own options" in lines
    alone = command(tmp_path, "bagua_bench.advise", "task=resnet50", "cluster.servers=1")
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "one rank has nobody to talk to; allowed: 2 or more" in alone.stderr


def test_without_ddp_the_others_are_compared_with_each_other() -> None:
    base = resolved(*BASE, "run.overlap=false")
    why = {"ddp": "run.overlap=false: belongs to Bagua's engine; algo=ddp has its own options"}
    rows = [row("qadam", 0.5), row("bytegrad", 1.0)]
    lines = words.report(rows, base, why).splitlines()
    assert lines[3].startswith("fastest of those that learn what DDP learns: bytegrad")
    assert lines[3].endswith(", 1 s a step; DDP cannot be run so")
    assert lines[4] == "faster, but learning something else: qadam (500 ms)"
    assert f"not compared: {why['ddp']}" in lines
    assert not [line for line in lines if "x DDP" in line or "nan" in line]


def test_ddp_is_compared_at_its_best() -> None:
    base = resolved(*BASE, "cluster.servers=4", "network.bandwidth=10gbit", "network.latency=5ms")
    found = candidates.candidates(base, [base.transport]).cells
    caps = [cell.algo.options["bucket_cap_mb"] for cell in found if cell.algo.name == "ddp"]
    assert caps == [25, 5, 100, 400]
    table = ranking.advise([cell for cell in found if cell.algo.name == "ddp"])
    assert table[0].bucket != "25 MiB"
    lines = words.report(table, base).splitlines()
    assert any(line.startswith("ddp: with algo.bucket_cap_mb=") for line in lines)


def test_programs_are_kept_and_what_loads_slowly_is_not_needed_for_those_that_are_known(tmp_path: Path) -> None:
    """Neither torch nor pandas; and for those that have to be rehearsed torch without its compiler."""
    code = (
        "import os, sys\nfrom bagua_bench.advise import __main__ as advice\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # on one core this process does all itself\n"
        "assert advice.main() == 0\nslow = ('torch', 'torch._dynamo', 'pandas')\n"
        "print('loaded', *(name for name in slow if name in sys.modules), file=sys.stderr)"
    )
    asked = ["task=vgg16", "cluster.servers=2", "network.bandwidth=10gbit"]
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second = (python(tmp_path, "-c", code, *asked, env=env, cold=True) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert [each.stderr.splitlines()[-1] for each in (first, second)] == ["loaded torch", "loaded"]


def test_what_is_prepared_is_answered_without_torch(tmp_path: Path) -> None:
    """At another bandwidth, too; without a task, the suite's own are prepared that can be simulated."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ahead = python(tmp_path, "-m", "bagua_bench.advise", "--prepare", "task=resnet50", env=env, cold=True)
    assert (ahead.returncode, ahead.stdout) == (0, "task=resnet50: prepared\n"), ahead.stderr
    code = "import sys\nfrom bagua_bench.advise import __main__ as advice\nassert advice.main() == 0\n"
    code += "assert 'torch' not in sys.modules"
    done = python(tmp_path, "-c", code, "task=resnet50", "network.bandwidth=3gbit", env=env, cold=True)
    assert done.returncode == 0 and done.stdout.startswith("resnet50, "), done.stderr
    assert [question[0] for question in prepare.tasks(["network.bandwidth=3gbit"])] == [
        "task=bert_large", "task=resnet50", "task=transformer", "task=vgg16"
    ]  # fmt: skip
    wrong = python(tmp_path, "-m", "bagua_bench.advise", "--prepare", "network.loss=200%", env=env)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "network.loss=200%" in wrong.stderr


def test_help_shows_the_users_own_cluster_and_every_column(tmp_path: Path) -> None:
    text = command(tmp_path, "bagua_bench.advise", "--help").stdout
    example = text[text.index("bagua-bench advise task=vgg16 task.batch") :].split("\n\n")[0].replace("\\\n", "")
    cell = resolved("mode=simulate", *example.split()[2:])
    assert assumptions(cell).startswith("vgg16, batch 64, 4 servers x 8 ranks; 50 ms of computing (task.step")
    header = next(line for line in said(row("ddp", 1.0)) if line.split()[:1] == ["algorithm"])
    legend = {line.split("  ")[0] for line in words.LEGEND.splitlines()}
    assert legend >= {*header.replace("x DDP", "").split(), "x DDP", "transport"}
    for name in (*conf_folder.names("compute"), *conf_folder.names("cluster")):
        assert name in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bagua_bench.advise", "task=vgg"], "task=vgg: no such task"),
        (["bagua_bench.advise", "mode=measure", "task=vgg16"], "mode=measure: advice is simulated; allowed: simulate"),
        (["bagua_bench.advise", "algo=qadam"], "algo=qadam: advise compares all algorithms; leave it out"),
        (
            ["bagua_bench.advise", "transport=bagua_net", "transport.wire=int8"],
            "transport.wire=int8: advise compares exact sums; leave it out",
        ),
        (["bagua_bench.advise", "campaign=quick"], "campaign=quick: advise runs no campaign; leave it out"),
        (["bagua_bench.advise", "run.bucket_size=1MiB"], "run.bucket_size=1MiB: advise tries several; leave it out"),
        (["bagua_bench.advise", "model.parameters=few"], "task.parameters=few: allowed: a number from 1000 to 1e+13"),
        (["bagua_bench.advise", "model=torchvision:resnet51"], "task.model=torchvision:resnet51: no such model"),
        (["bagua_bench.advise", "task=vgg16", "model.parameters=1e9"], "task.parameters=1e9: no such key"),
        (["bagua_bench.advise", "cluster.physics.lin=1"], "cluster.physics.lin=1: no such key"),
        (["bagua_bench.advise", "task=vgg16", "+foo=1"], "foo=1: no such key; allowed: mode, task"),
        (["bagua_bench.advise", "task=vgg16", "+run.step=1"], "run.step=1: no such key; allowed in run: steps"),
        (["bagua_bench.calibrate", "calibrate", "--cluster", "mine"], "allowed without --records"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = command(tmp_path, *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_figures_of_the_page(tmp_path: Path) -> None:
    ran = command(tmp_path, "bagua_bench", "campaign=paper", "campaign.axes=['algo=ddp,async']", "task=vgg16",
                  "network.bandwidth=100gbit", "transport=nccl")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    drawn = command(tmp_path, "bagua_bench.figures", "paper", "--results", str(tmp_path / "results"))
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "results" / "figures" / "paper-vgg16_128gpu.pdf").exists()
