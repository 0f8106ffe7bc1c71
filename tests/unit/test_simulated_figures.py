"""Figures of simulated records: the published page, and the decision map."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from hydra import initialize_config_dir

from bagua_bench.calibrate import published
from bagua_bench.campaign.cells import expand
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.figures import decision_map, paper
from bagua_bench.results import records
from bagua_bench.simulate.run import simulate
from tests.catalogue import composed, resolved

matplotlib.use("Agg")


def record(*overrides: str) -> dict[str, Any]:
    cell = resolved("mode=simulate", "run.steps=2", "run.untimed=1", *overrides)
    made = records.make_record(cell, "paper", 0, datetime.now(timezone.utc))
    return records.complete(made, simulate(cell))


def test_the_campaign_has_a_cell_for_every_published_number() -> None:
    chosen = composed("campaign=paper").campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, [])
    made = {paper._key(cell) for cell in cells}
    wanted = {("bagua_paper", *paper._wanted(p.overrides)) for p in published.points(paper.FOLDER)}
    wanted |= {("bagua_paper_e2e", *paper._wanted(overrides)) for _, overrides, _ in published.end_to_end(paper.FOLDER)}
    assert wanted <= made


def test_published_and_simulated_stand_side_by_side() -> None:
    common = ["task=bert_large", "algo=ddp", "transport=nccl", "cluster=bagua_paper", "cluster.servers=16"]
    fast = record(*common, "network.bandwidth=100gbit")
    late = record(*common, "network.bandwidth=100gbit", "network.latency=5ms")
    data = paper.table([fast, late])
    parts = paper.parts(data)
    assert set(parts) == {"bert_large_bandwidth", "bert_large_latency", "e2e_bert_large_f1"}
    row = parts["bert_large_latency"].set_index("added_ms").loc[5.0]
    assert row["published"] == 904
    step = late["result"]["step_seconds"][0]
    assert row["predicted"] == pytest.approx(116 * step)
    assert row["error"] == pytest.approx(116 * step / 904 - 1)
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    paper.draw(parts["bert_large_latency"], axes)
    published_line, simulated_line = axes.lines
    assert list(published_line.get_ydata()) == [125, 904]
    assert simulated_line.get_linestyle() == "--" and simulated_line.get_markerfacecolor() == "none"
    plt.close(figure)


def test_a_modern_map_says_that_it_rests_on_estimates() -> None:
    chosen = composed("campaign=tradeoff_modern").campaign
    with initialize_config_dir(str(FOLDER), version_base=None):
        cells = expand(chosen, ["network.latency=0ms"])
    assert {cell.network.bandwidth / 1e9 for cell in cells} == {10, 25, 50, 100, 200, 400}
    few = [cell for cell in cells if cell.algo.name in ("ddp", "bytegrad")]
    made = [records.make_record(cell, "tradeoff_modern", 0, datetime.now(timezone.utc)) for cell in few]
    found = [records.complete(one, simulate(records.cell_of(one))) for one in made]
    data = decision_map.table(found).set_index("gbit_per_s")
    assert set(data["compute"]) == {"h100_published"} and set(data["cluster"]) == {"h100_estimate"}
    assert data["speed_up"][10] > 2 > data["speed_up"][400], "the network is what compression helps against"


def test_measured_records_have_no_place_among_simulated_ones() -> None:
    made = record("task=vgg16", "algo=ddp", "transport=nccl", "cluster=bagua_paper", "network.bandwidth=10gbit")
    with pytest.raises(ValueError, match="simulated"):
        paper.table([{**made, "source": "measured"}])


def test_the_decision_map_names_the_fastest(tmp_path: Path) -> None:
    common = ["task=vgg16", "cluster=bagua_paper"]
    found = [
        record(*common, f"algo={algo}", f"network.bandwidth={rate}", f"network.latency={ms}ms")
        for algo in ("ddp", "bytegrad")
        for rate in ("1gbit", "100gbit")
        for ms in (0, 5)
    ]
    data = decision_map.table(found)
    assert len(data) == 4
    low = data[(data["gbit_per_s"] == 1) & (data["latency_ms"] == 0)].iloc[0]
    assert low["algorithm"] == "bytegrad"
    assert low["speed_up"] == pytest.approx(low["ddp_seconds"] / low["step_seconds"])
    assert low["speed_up"] > 3
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    decision_map.draw(data, axes)
    assert set(data["runner_up"]) == {"ddp"} and (data["lead"] == data["speed_up"]).all()
    legend = {text.get_text() for text in axes.get_legend().get_texts()}
    assert legend == {"ByteGrad"} | ({"lead below 6 %"} if data["lead"].min() < decision_map.TIE else set())
    assert {text.get_text() for text in axes.texts} == {f"{value:.3g}x" for value in data["speed_up"]}
    assert axes.get_title().endswith("\nsimulated, 16 servers, compute=v100, cluster=bagua_paper")
    assert list(decision_map.parts(data)) == [""]
    smaller = record(*common, "algo=ddp", "network.bandwidth=1gbit", "cluster.servers=4")
    sizes = decision_map.parts(decision_map.table([*found, smaller]))
    assert {name: len(rows) for name, rows in sizes.items()} == {"4_servers": 1, "16_servers": 4}
    plt.close(figure)
    with pytest.raises(ValueError, match="algo=ddp"):
        decision_map.table([r for r in found if r["config"]["algo"]["name"] != "ddp"])
