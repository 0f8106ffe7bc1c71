"""Figures are pure functions of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest

from bagua_bench.figures import (
    autotune,
    balance,
    channels,
    defaults,
    drawing,
    elastic,
    learning,
    one_channel,
    peers,
    regret,
    runs,
    throughput,
    transports,
)
from bagua_bench.results import records
from tests.catalogue import HOME, resolved
from tests.integration.cli import python
from tests.unit.test_records import RESULT, new

matplotlib.use("Agg")


def campaign(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    found = []
    for algo, values in rates.items():
        for round_, rate in enumerate(values):
            record = json.loads(json.dumps(records.complete(new(round_), RESULT)))
            record["config"]["algo"]["name"] = record["cell"] = algo
            record["result"]["throughput"] = rate
            found.append(record)
    return found


RATES = {"ddp": [10.0, 11, 10, 11, 10], "bytegrad": [20.0, 21, 20, 21, 20], "same": [10.0, 11, 10, 11, 10]}


def test_table() -> None:
    data = throughput.table(campaign(RATES)).set_index("algorithm")
    assert data.loc["bytegrad", "samples_per_second"] == 20.4
    assert data.loc["bytegrad", "ratio_to_ddp"] == pytest.approx(20.4 / 10.4)
    assert data.loc["bytegrad", "low"] < 20.4 < data.loc["bytegrad", "high"]
    assert data["faster_than_ddp"].to_dict() == {"ddp": False, "bytegrad": True, "same": False}
    assert data.loc["ddp", "megabytes_per_step_and_rank"] == 15e-6


def test_bytes_are_a_mean_over_ranks_also_where_an_entry_stands_for_several() -> None:
    found = campaign({"ddp": [10.0]})
    found[0]["result"]["bytes_per_step"] = [{"flat": 8e6, "inter": 4e6}, {"flat": 8e6, "inter": 0.0}]
    assert throughput.table(found).loc[0, "megabytes_per_step_and_rank"] == 10.0
    found[0]["result"]["rank_counts"] = [1, 7]
    assert throughput.table(found).loc[0, "megabytes_per_step_and_rank"] == 8.5


def test_unlike_records_are_refused() -> None:
    found = campaign(RATES)
    found[0]["config"]["task"]["batch"] = 99
    with pytest.raises(ValueError, match=r"task\.batch"):
        throughput.table(found)


def test_draw_shows_every_bar_with_its_interval() -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    throughput.draw(throughput.table(campaign(RATES)), axes)
    assert [patch.get_height() for patch in axes.patches] == [10.4, 20.4, 10.4]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["PyTorch DDP", "ByteGrad", "same"]
    assert axes.get_title() == "measured; n = 5, with 95 % intervals; A/A noise ±6.0 %"
    plt.close(figure)


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "quick" / "records.jsonl"
    old = campaign({"ddp": [1.0]})
    old[0]["code"]["sources"], old[0]["began"] = "older", "2000"
    for record in [*old, *campaign(RATES)]:
        records.append(path, record)
    done = python(tmp_path, "-m", "bagua_bench.figures", "quick", "--results", str(tmp_path), cold=True)
    assert done.returncode == 0, done.stderr
    assert "bytegrad" in done.stdout
    made = {p.name: p.read_bytes() for p in (tmp_path / "figures").iterdir()}
    assert set(made) == {"quick.pdf", "quick.png", "quick.csv", "quick.txt"}
    said = made["quick.txt"].decode()
    assert said.startswith("Throughput of several algorithms on one task") and "n = 5" in said and said.count("\n") == 1
    assert b"Type3" not in made["quick.pdf"], "its text can be searched and edited"
    assert b"CreationDate" not in made["quick.pdf"], "drawn again, it would be another file"
    drawn = pd.read_csv(tmp_path / "figures" / "quick.csv").set_index("algorithm")
    assert drawn.loc["ddp", "samples_per_second"] == 10.4, "records of older code are left out"


def test_a_sweep_of_ones_own_is_drawn(tmp_path: Path) -> None:
    asked = ["mode=simulate", "task=vgg16", "algo=ddp,bytegrad", "network.bandwidth=1gbit,10gbit"]
    ran = python(tmp_path, "-m", "bagua_bench", "-m", *asked)
    assert ran.returncode == 0, ran.stderr

    def drawn(*only: str) -> pd.DataFrame:
        done = python(tmp_path, "-m", "bagua_bench.figures", "runs", *(("--only", *only) if only else ()))
        assert done.returncode == 0, done.stderr
        assert {p.suffix for p in (tmp_path / "results" / "figures").glob("runs.*")} == {
            ".pdf", ".png", ".csv", ".txt",
        }  # fmt: skip
        return pd.read_csv(tmp_path / "results" / "figures" / "runs.csv")

    lines = drawn().set_index(["algorithm", "bandwidth, Gbit/s"])["ratio_to_ddp"]
    assert lines["ddp", 1] == 1 < lines["bytegrad", 10] < lines["bytegrad", 1]
    bars = drawn("network.bandwidth=1gbit").set_index("run")["ratio_to_ddp"]
    assert list(bars.index) == ["algo.name=ddp", "algo.name=bytegrad"]
    assert bars["algo.name=bytegrad"] == pytest.approx(lines["bytegrad", 1])
    wide = drawn("algo=bytegrad", "network.bandwidth=1gbit")
    assert len(wide) == 1 and wide["ratio_to_ddp"].isna().all()
    for only, message in (
        ("foo=1", "the runs differ in algo.name"),
        ("algo=qadam", "there are algo.name=bytegrad,ddp"),
    ):
        done = python(tmp_path, "-m", "bagua_bench.figures", "runs", "--only", only)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and message in done.stderr


def test_runs_that_differ_in_several_things_have_a_bar_each() -> None:
    from matplotlib import pyplot as plt

    found = []
    for algo, average, batch in (("ddp", None, 1), ("bytegrad", True, 1), ("bytegrad", False, 2)):
        [record] = campaign({algo: [10.0 * batch]})
        own = [] if average is None else [f"algo.average={average}"]
        record["config"] = resolved("task=quadratic", f"task.batch={batch}", f"algo={algo}", *own).to_json()
        found.append(record)
    data = runs.table(found)
    assert list(data["run"]) == [
        "task.batch=1 algo.name=ddp",
        "task.batch=1 algo.name=bytegrad algo.average=True",
        "task.batch=2 algo.name=bytegrad algo.average=False",
    ]
    figure, axes = plt.subplots()
    runs.draw(data, axes)
    assert [patch.get_height() for patch in axes.patches] == [10.0, 10.0, 20.0]
    plt.close(figure)
    found[0]["source"] = "simulated"
    with pytest.raises(ValueError, match="source"):
        runs.table(found)


def test_runs_are_selected_by_what_only_some_of_them_have() -> None:
    found = campaign({"ddp": [10.0], "bytegrad": [20.0]})
    found[0]["config"]["algo"]["bucket_cap_mb"] = 25
    [ddp] = runs.selected(found, ["algo.bucket_cap_mb=25"])
    assert ddp["config"]["algo"]["name"] == "ddp"
    assert runs.selected(found, ["run.overlap=true"]) == found
    with pytest.raises(ValueError, match=r"there are run\.overlap=true"):
        runs.selected(found, ["run.overlap=false"])


def test_records_of_another_kind_are_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "records.jsonl").write_text('{"schema": 999}\n')
    done = python(tmp_path, "-m", "bagua_bench.figures", "quick", "--results", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "999" in done.stderr


@pytest.mark.parametrize(("name", "message"), [("nothing", "allowed: "), ("quick", "there are no records")])
def test_command_errors(tmp_path: Path, name: str, message: str) -> None:
    done = python(tmp_path, "-m", "bagua_bench.figures", name, "--results", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_transports_are_compared_to_gloo_for_each_algorithm() -> None:
    from matplotlib import pyplot as plt

    found = []
    for transport, factor in (("gloo", 1.0), ("bagua_net", 3.0)):
        for record in campaign({"ddp": [10.0 * factor, 11.0 * factor], "bytegrad": [20.0, 22.0]}):
            record["config"]["transport"]["backend"] = transport
            found.append(record)
    data = transports.table(found).set_index(["algorithm", "transport"])
    assert data.loc[("ddp", "bagua_net"), "ratio_to_gloo"] == pytest.approx(3)
    assert data.loc[("bytegrad", "bagua_net"), "ratio_to_gloo"] == pytest.approx(1)
    figure, axes = plt.subplots()
    transports.draw(data.reset_index(), axes)
    assert sorted(patch.get_height() for patch in axes.patches) == [10.5, 21, 21, 31.5]
    plt.close(figure)


def test_a_lossy_transport_is_not_the_exact_one() -> None:
    found = []
    for change in ({}, {"backend": "bagua_net"}, {"backend": "bagua_net", "wire": "int8"}):
        for record in campaign({"ddp": [10.0, 11.0]}):
            record["config"]["transport"] |= change
            found.append(record)
    assert set(transports.table(found)["transport"]) == {"gloo", "bagua_net", "bagua_net int8"}


def test_channels_stand_beside_each_other_and_against_ddp_and_one_channel() -> None:
    from matplotlib import pyplot as plt

    found = campaign({"ddp": [10.0, 10.1, 9.9, 10.0, 10.05]})
    for number, factor in ((1, 0.5), (2, 1.0), (4, 2.0)):
        for record in campaign({"bytegrad": [factor * value for value in (10.0, 10.1, 9.9, 10.0, 10.05)]}):
            record["config"]["run"]["channels"] = number
            found.append(record)
    data = channels.table(found).set_index(["algorithm", "channels"])
    assert list(data["ratio_to_ddp"]) == pytest.approx([1, 0.5, 1, 2])
    assert list(data["slower_than_ddp"]) == [False, True, False, False]
    assert list(data["faster_than_ddp"]) == [False, False, False, True]
    assert not any(data["slower_than_one_channel"])
    figure, axes = plt.subplots()
    channels.draw(data.reset_index(), axes)
    assert [patch.get_height() for patch in axes.patches] == pytest.approx([10.01, 5.005, 10.01, 20.02])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1", "2", "4"]
    plt.close(figure)


def test_peers_are_held_against_ddp_at_its_best() -> None:
    from matplotlib import pyplot as plt

    speeds = {
        ("ddp", 25, 10.0): 10.0, ("ddp", 100, 10.0): 20.0,
        ("horovod", None, 10.0): 15.0, ("bytegrad", None, 10.0): 40.0,
        ("ddp", 25, 100.0): 50.0, ("ddp", 100, 100.0): 40.0, ("bytegrad", None, 100.0): 50.0,
    }  # fmt: skip
    found = []
    for (algo, cap, gbit), rate in speeds.items():
        for round_ in range(5):
            [record] = campaign({algo: [rate + 0.01 * round_]})
            own = [] if cap is None else [f"algo.bucket_cap_mb={cap}"]
            record["config"] = resolved(
                "task=quadratic", f"algo={algo}", *own, f"network.bandwidth={gbit}gbit"
            ).to_json()
            record["cell"], record["round"] = f"{algo} {cap} {gbit}", round_
            found.append(record)
    data = peers.table(found).set_index(["network", "algorithm", "settings"])
    slow, fast = "10\nGbit/s", "100\nGbit/s"
    assert data["ratio_to_ddp"][slow, "horovod", "defaults"] == pytest.approx(0.75, rel=0.01)
    assert data["ratio_to_ddp"][slow, "ddp", "defaults"] == pytest.approx(0.5, rel=0.01)
    assert data["ratio_to_ddp"][fast, "bytegrad", "defaults"] == pytest.approx(1, rel=0.01)
    assert (
        data["slower_than_ddp"][slow, "horovod", "defaults"] and data["faster_than_ddp"][slow, "bytegrad", "defaults"]
    )
    assert not data["faster_than_ddp"][fast, "bytegrad", "defaults"]
    figure, axes = plt.subplots()
    [rows] = peers.parts(data.reset_index()).values()
    peers.draw(rows, axes)
    assert len(axes.get_legend().get_texts()) == 3 and [tick.get_text() for tick in axes.get_xticklabels()] == [
        slow,
        fast,
    ]
    plt.close(figure)


def test_published_and_simulated_systems_stand_beside_the_emulated_ones() -> None:
    """BERT-Large's epochs at 100 Gbit/s and 5 ms: DDP 904 s, ByteGrad 463.5 s, Horovod 599 s."""
    found = []
    for algo, rate in (("ddp", 10.0), ("bytegrad", 30.0)):
        [record] = campaign({algo: [rate]})
        network = ("network.bandwidth=100gbit", "network.latency=5ms")
        record["config"] = resolved("task=bert_large", f"algo={algo}", *network).to_json()
        record["cell"], record["source"] = algo, "emulated"
        found.append(record)
    [rows] = peers.parts(peers.table(found)).values()
    assert list(dict.fromkeys(rows["source"])) == ["emulated", "published", "simulated"]
    there = rows[rows["network"] == "100\nGbit/s,\n5 ms"].set_index(["source", "algorithm"])["ratio_to_ddp"]
    assert there["published", "bytegrad"] == pytest.approx(904 / 463.5)
    assert there["published", "horovod"] == pytest.approx(904 / 599)
    assert there["emulated", "bytegrad"] == pytest.approx(3)
    paper = pd.read_csv(HOME / "results" / "figures" / "paper-bert_large_latency.csv").set_index(["label", "added_ms"])
    seconds = paper["predicted"]
    assert there["simulated", "qadam"] == pytest.approx(seconds["pytorch_ddp", 5] / seconds["qadam_1bit", 5], rel=1e-6)
    drawn = drawing.figure(peers, rows)
    assert [axes.get_title("left").split(",")[0] for axes in drawn.axes] == [
        "emulated; n = 1",
        "published",
        "simulated",
    ]
    ticks = [[tick.get_text().split("\n")[0] for tick in axes.get_xticklabels()] for axes in drawn.axes]
    assert ticks == [["100"], ["1", "4", "16", "100", "100", "100"], ["1", "4", "16", "100", "100", "100"]]
    names = [text.get_text() for text in drawn.axes[-1].get_legend().get_texts()]
    assert len(names) == len(set(names)) and "Horovod" in names
    assert not any(axes.get_legend() for axes in drawn.axes[:-1])


def test_learning_is_shown_over_seeds(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    found = []
    for algo, final in (("ddp", 0.0), ("async", 1.0)):
        for seed in (0, 1, 2):
            record = json.loads(json.dumps(records.complete(new(0), RESULT)))
            record["config"]["algo"]["name"], record["config"]["run"]["seed"] = algo, seed
            record["result"]["losses"] = [2.0 + seed] * 10 + [final + seed] * 10 + [99.0] * 3
            record["result"]["metrics"] = {"top1": 0.9 - 0.1 * seed}
            found.append(record)
    data = learning.table(found)
    assert list(data["step"]) == [10, 20, 10, 20], "a window that is not full is left out"
    assert list(data["loss"]) == [3, 1, 3, 2]
    assert (list(data["loss_least"]), list(data["loss_most"])) == ([2, 0, 2, 1], [4, 2, 4, 3])
    assert data["top1"].iloc[0] == pytest.approx(0.8) and set(data["seeds"]) == {3}
    figure, axes = plt.subplots()
    learning.draw(data, axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "PyTorch DDP: 80.0% (70.0% to 90.0%)", "Async model average: 80.0% (70.0% to 90.0%)",
    ]  # fmt: skip
    plt.close(figure)
    found[0]["config"]["task"]["batch"] = 99
    with pytest.raises(ValueError, match=r"task\.batch"):
        learning.table(found)


def on(record: dict[str, Any], task: str, gbit: float, ms: float) -> dict[str, Any]:
    """The record with another task and network."""
    record["config"]["task"]["name"] = task
    record["config"]["network"] |= {"bandwidth": gbit * 1e9, "latency": ms / 1e3}
    return record


def test_defaults_are_compared_with_ddp_on_the_same_network() -> None:
    from matplotlib import pyplot as plt

    found = []
    for gbit, factor in ((1.0, 3.0), (100.0, 0.5)):
        values = {
            "ddp": [10.0, 10.1, 9.9, 10.05, 10.0],
            "bytegrad": [factor * x for x in (10.0, 10.1, 9.9, 10.05, 10.0)],
        }
        found += [on(record, "vgg16", gbit, 1) for record in campaign(values)]
    data = defaults.table(found)
    ratios = data[data["algorithm"] == "bytegrad"].set_index("gbit_per_s")
    assert list(ratios["ratio_to_ddp"]) == pytest.approx([3, 0.5])
    assert list(ratios["faster_than_ddp"]) == [True, False]
    assert list(ratios["slower_than_ddp"]) == [False, True]
    assert not any(data[data["algorithm"] == "ddp"]["slower_than_ddp"])
    figure, axes = plt.subplots()
    [(task, rows)] = defaults.parts(data).items()
    defaults.draw(rows, axes)
    assert task == "vgg16"
    assert [line.get_ydata()[0] for line in axes.lines[:2]] == pytest.approx([3, 0.5])
    plt.close(figure)


def test_an_algorithm_is_compared_with_itself_on_the_same_network() -> None:
    from matplotlib import pyplot as plt

    found = []
    for gbit, factor in ((1.0, 1.0), (100.0, 0.5)):
        for number, rate in ((None, 10 * factor), (1, 10.0)):
            group = campaign({"bytegrad": [rate * x for x in (1.0, 1.01, 0.99, 1.0, 1.005)]})
            for record in group:
                record["config"]["run"]["channels"] = number
            found += [on(record, "vgg16", gbit, 1) for record in group]
    data = one_channel.table(found)
    assert list(data["ratio_to_one_channel"]) == pytest.approx([1, 0.5])
    assert list(data["slower_than_one_channel"]) == [False, True]
    figure, axes = plt.subplots()
    one_channel.draw(data, axes)
    assert list(axes.lines[0].get_ydata()) == pytest.approx([1, 0.5])
    plt.close(figure)
    with pytest.raises(ValueError, match=r"run\.channels=null and 1 on each network"):
        one_channel.table(found[:5])


def test_balanced_and_random_samplers_stand_beside_each_other_from_each_source() -> None:
    from matplotlib import pyplot as plt

    found = []
    for source, code in (("emulated", "one"), ("simulated", "another")):
        for sampler, minutes, uneven in (("random", 20.0, 1.25), ("balanced", 16.0, 1.0)):
            for record in campaign({"ddp": [10.0 * 20 / minutes] * 3}):
                record["config"]["task"] |= {"sampler": sampler, "batching": "mixed"}
                record["source"], record["code"]["sources"] = source, code
                record["result"] |= {"imbalance": uneven, "epoch_seconds": 60 * minutes}
                found.append(record)
    data = balance.table(found)
    assert list(zip(data["source"], data["sampler"], strict=True)) == [
        ("emulated", "random"), ("emulated", "balanced"), ("simulated", "random"), ("simulated", "balanced"),
    ]  # fmt: skip
    assert list(data["epoch_minutes"]) == [20, 16] * 2 and list(data["imbalance"]) == [1.25, 1] * 2
    assert list(data["times_as_fast"]) == pytest.approx([1, 1.25] * 2)
    figure, axes = plt.subplots()
    balance.draw(data, axes)
    assert [patch.get_height() for patch in axes.patches[:4]] == [20, 16, 20, 16]
    assert [text.get_text() for text in axes.texts] == ["1.25", "1.00"] * 2
    plt.close(figure)
    found[0]["result"]["imbalance"] = None
    with pytest.raises(ValueError, match=r"batches are all alike: there is nothing to balance without task\.sampler"):
        balance.table(found)


def measured(rate: str, throughputs: dict[str, float], *slow: str) -> list[dict[str, Any]]:
    """Three rounds of each algorithm on four servers, almost alike."""
    found = []
    for algo, value in throughputs.items():
        place = ("mode=emulate", "cluster=local_emulated", "cluster.servers=4", f"network.bandwidth={rate}")
        cell = resolved(*place, "task=vgg16", f"algo={algo}", "compute.shrink=100", "run.steps=2", *slow)
        for round_ in range(3):
            record = json.loads(json.dumps(records.complete(new(round_), RESULT)))
            record |= {"config": cell.to_json(), "cell": cell.id}
            record["result"] |= {"throughput": value * (1 + round_ / 1000), "samples_per_step": 128}
            found.append(record)
    return found


def test_regret_is_the_advised_algorithms_time_over_the_fastest_ones() -> None:
    """At 1 Gbit/s 8 bits are advised, of DDP's update, and the exchange with one peer at half the bytes of DDP's."""
    from matplotlib import pyplot as plt

    right = measured("1gbit", {"ddp": 10.0, "bytegrad": 30.0, "decentralized": 20.0})
    wrong = measured("2gbit", {"ddp": 40.0, "bytegrad": 20.0, "decentralized": 80.0}, "cluster.slow_ranks.0=2")
    data = regret.table([*right, *wrong])
    assert list(data["question"]) == ["all algorithms"] * 2 + ["learning what DDP learns"] * 2
    same = data[data["question"] == "learning what DDP learns"].set_index("place")
    assert list(same.index) == ["vgg16, 4 servers, 1 Gbit/s, 0 ms", "vgg16, 4 servers, 2 Gbit/s, 0 ms, x2"]
    assert list(same["advised"]) == ["bytegrad"] * 2 and list(same["fastest"]) == ["bytegrad", "ddp"]
    assert list(same["regret"]) == pytest.approx([1, 2]) and list(same["first"]) == [True, False]
    assert list(same["algorithms"]) == [2, 2] and list(same["rounds"]) == [3, 3]
    every = data[data["question"] == "all algorithms"]
    assert list(every["fastest"]) == ["bytegrad", "decentralized"]
    figure, axes = plt.subplots()
    regret.draw(data, axes)
    assert list(axes.lines[1].get_ydata()) == pytest.approx([1, 2])
    assert "first in 1 of 2, median 1.50, worst 2.00" in axes.get_legend().get_texts()[1].get_text()
    plt.close(figure)


def test_autotuning_is_drawn_beside_the_sweep_and_the_published_curve() -> None:
    tuned, *swept = (on(record, "vgg16", 1, 1) for record in campaign({"bytegrad": [10.0, 10.0, 10.0]}))
    trials = [
        {"values": {"bucket_size_2p": p, "channels": 1}, "score": s} for p, s in ((10, 0.1), (24, 0.5), (12, 0.2))
    ]
    tuned["result"]["study"] = {"trials": trials, "ends": [5, 8, 11], "order": [], "best": trials[1]["values"]}
    tuned["config"]["run"] |= {
        "bucket_size": 1024,
        "autotune": {"max_samples": 3, "sample_steps": 1, "warmup_steps": 1},
    }
    for record, seconds in zip(swept, (1, 2), strict=True):
        record["config"]["run"]["bucket_size"] = 2**24 * seconds
        record["result"] |= {"step_seconds": [seconds], "parameters": 2**28}
        record["result"]["sending"] = {"bucket_size": 2**24 * seconds, "buckets": 9, "channels": 2}
    tuned["result"] |= {"step_seconds": [1.25], "parameters": 2**28}
    tuned["result"]["sending"] = {"bucket_size": 2**24, "buckets": 9, "channels": 1}
    data = autotune.table([tuned, *swept])
    cases = autotune.parts(data)
    assert list(cases) == ["vgg16_bytegrad_1gbit_1ms"]
    own = cases["vgg16_bytegrad_1gbit_1ms"]
    start = "from buckets of 2^10 bytes"
    assert list(own[own["series"] == start]["best_so_far"]) == [0.1, 0.5, 0.5]
    assert set(own["series"]) == {start, f"{start}, afterwards", "sweep", autotune.PUBLISHED}
    assert list(own[own["series"] == f"{start}, afterwards"]["of_best"]) == pytest.approx([0.8])
    assert list(own[own["series"] == "sweep"]["score"]) == pytest.approx([1.0, 0.5])
    assert own[own["series"] == start]["samples"].isna().all(), "half of the best of the sweep is not near it"
    trials[2]["score"] = 0.99
    near = autotune.parts(autotune.table([tuned, *swept]))["vgg16_bytegrad_1gbit_1ms"]
    assert list(near[near["series"] == start]["samples"]) == [3, 3, 3]
    tuned["config"]["run"]["autotune"]["advised"] = 2
    assert "from the simulator's advice" in set(autotune.table([tuned, *swept])["series"])
    assert sum(own["series"] == autotune.PUBLISHED) == 30
    published, tuning = drawing.figure(autotune, own).axes
    assert len(published.lines) == 3 and tuning.get_legend() is not None
    alone = autotune.parts(autotune.table([tuned]))["vgg16_bytegrad_1gbit_1ms"]
    legend = drawing.figure(autotune, alone).axes[1].get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["from the simulator's advice"]


def test_losses_of_elastic_runs_go_on_through_what_interrupts_them() -> None:
    from matplotlib import pyplot as plt

    lives = [{"ranks": 3, "first": 1, "last": 14}, {"ranks": 2, "first": 11, "last": 30}]
    lost = {"event": "server 1 is lost", "step": 14, "repeated": 4}
    found = []
    for outages in ([], [{"server": 1, "step": 12, "back": None}]):
        for round_, seconds in enumerate((8.0, 10.0)):
            record = json.loads(json.dumps(records.complete(new(round_), RESULT)))
            record["config"]["run"]["elastic"] = {
                "every": 10, "keep": 2, "servers": 1, "restarts": 3, "regroup": False, "folder": None,
                "outages": outages,
            }  # fmt: skip
            record["result"]["losses"] = [2.0] * 10 + [1.0 + round_] * 10 + [0.5] * 10
            interrupted = [{**lost, "seconds": seconds}] if outages else []
            record["result"]["elastic"] = {"lives": lives[: 1 + len(interrupted)], "interruptions": interrupted}
            found.append(record)
    data = elastic.table(found)
    assert list(data["outages"]) == ["none"] * 3 + ["1@12"] * 3 and list(data["loss"]) == [2, 1.5, 0.5] * 2
    assert list(data["event"]) == ["", "", "", "", "server 1 is lost", ""]
    row = data.iloc[4]
    assert (row["seconds"], row["seconds_least"], row["seconds_most"]) == (9, 8, 10)
    assert (row["repeated_most"], row["ranks"], row["step"]) == (4, 2, 20)
    figure, axes = plt.subplots()
    elastic.draw(data, axes)
    assert [text.get_text() for text in axes.texts] == ["9 s"]
    for record in found[2:]:
        record["config"]["run"]["elastic"]["regroup"] = True
    assert list(elastic.table(found)["outages"]) == ["none"] * 3 + ["1@12, no restart"] * 3
    plt.close(figure)
    del found[0]["result"]["elastic"]
    with pytest.raises(ValueError, match=r"run\.elastic=true"):
        elastic.table(found)
