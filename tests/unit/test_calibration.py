"""Calibration: parameters come back from made-up measurements; published points, rankings, cross-validation."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from bagua_bench.advise import candidates, ranking, reasons
from bagua_bench.calibrate import calibration, published, quality
from bagua_bench.calibrate.__main__ import main
from bagua_bench.calibrate.fit import Case, case, fit
from bagua_bench.calibrate.parameters import GLOO, PAPER, Parameter, physics, tree
from bagua_bench.configuration import facts
from bagua_bench.configuration.physics import Physics
from bagua_bench.results import records
from bagua_bench.results.provenance import HOME
from bagua_bench.simulate.posterior import Posterior, _words
from bagua_bench.simulate.run import simulate
from tests.catalogue import resolved, with_physics

PAPER_FOLDER = HOME / "results" / "paper"

TRUTH = replace(Physics(), ring=2e9, efficiency_direct=0.8, process=1.5e9, window=3e6)
CHOSEN = tuple(p for p in PAPER if p.name in ("ring", "efficiency_direct", "process") and not p.transport)


def measured(noise: float = 0.0) -> list[Case]:
    """Made-up measurements of known parameters, with a relative error."""
    rng, cases = np.random.default_rng(0), []
    for algo in ("ddp", "bytegrad", "decentralized"):
        for rate in (1, 10, 100):
            overrides = ["mode=simulate", "task=vgg16", f"algo={algo}", "cluster=bagua_paper", "transport=nccl"]
            cell = resolved(*overrides, f"network.bandwidth={rate}gbit", "run.steps=1")
            made = case(cell, 1.0)
            cases.append(replace(made, seconds=made.predict(TRUTH) * (1 + noise * rng.standard_normal())))
    return cases


def test_known_parameters_are_found_again() -> None:
    found = fit(60 * measured(), CHOSEN, {"window": 3e6})
    for parameter, value in zip(CHOSEN, found.values, strict=True):
        assert value == pytest.approx(getattr(TRUTH, parameter.name), rel=0.02), parameter.name
    assert np.abs(found.errors(measured())).max() < 1e-3


def test_few_points_do_not_drive_a_parameter_to_its_end() -> None:
    """One point 20 % off what is usual says little about each of four parameters: all stay well inside."""
    [known, *_] = measured()
    usual = physics([p.start for p in CHOSEN], CHOSEN, {"window": 3e6}, "nccl")
    found = fit([replace(known, seconds=1.2 * known.predict(usual))], CHOSEN, {"window": 3e6})
    for parameter, value in zip(CHOSEN, found.values, strict=True):
        span = parameter.high - parameter.low
        assert parameter.low + 0.02 * span < value < parameter.high - 0.005 * span, parameter.name


def test_intervals_cover_the_truth_and_grow_with_noise() -> None:
    quiet, noisy = fit(measured(0.02), CHOSEN, {"window": 3e6}), fit(measured(0.1), CHOSEN, {"window": 3e6})
    for parameter, value, half in zip(CHOSEN, quiet.values, quiet.half_widths, strict=True):
        assert abs(value - getattr(TRUTH, parameter.name)) < 2 * half
    assert (noisy.half_widths >= quiet.half_widths * 0.99).all()


def test_what_the_points_do_not_tell_has_the_widest_interval() -> None:
    unseen = Parameter("shaped", 5e8, 6e9, 1.6e9, "no point has an added latency")
    found = fit(measured(), (*CHOSEN, unseen), {"window": 3e6})
    assert found.half_widths[-1] == pytest.approx(1.96 * 5.5e9 / math.sqrt(12), rel=1e-3)
    assert found.learned[-1] < 1e-3 < 0.9 < found.learned[:-1].min()


def test_uncertainty_grows_with_the_distance_from_the_points() -> None:
    """Without a point at a higher latency nothing is known of what it does; windows lie anywhere in their range."""
    window = next(p for p in PAPER if p.name == "window")
    cases = measured(0.02)
    found = fit(cases, (*CHOSEN, window))
    posterior = found.posterior([c.cell for c in cases])

    def spread(*overrides: str) -> float:
        asked = ["mode=simulate", "task=vgg16", "algo=ddp", "cluster=bagua_paper", "transport=nccl", "run.steps=1"]
        made = case(resolved(*asked, "network.bandwidth=100gbit", *overrides), 1.0)
        values = physics(list(found.values), found.parameters, found.base, "nccl")
        return math.hypot(*posterior.spread(values, "nccl", made.predict))

    near, far, farther = (spread(f"network.latency={late}ms") for late in (0, 5, 50))
    assert near < 0.04 < far < farther
    assert farther > 0.2, "the window may be 1 MB or 16 MB"


def test_intervals_grow_with_the_distance_from_the_points() -> None:
    posterior = Posterior({}, {"network.latency": (0.0, 1e-3), "network.jitter": (0.0, 0.0)}, unseen=0.1)

    def half(latency: str, *others: str) -> float:
        asked = ("mode=simulate", "task=vgg16", "algo=ddp", "cluster=bagua_paper", "transport=nccl", *others)
        return posterior.width(0.0, [], resolved(*asked, f"network.latency={latency}"))

    assert half("1ms") == half("0ms") == 0
    for latency, besides in (("10ms", 0.2), ("100ms", 0.3)):
        assert half(latency) == pytest.approx(math.log1p(besides))
    for jitter, besides in (("1ms", 0.1), ("50ms", 0.2)):
        assert half("0ms", f"network.jitter={jitter}") == pytest.approx(math.log1p(besides)), "points without any"


def test_values_of_another_fit_are_as_uncertain_as_they_are_there() -> None:
    below = Posterior({"ring": (2.0, 1.0), "window": (1.0, 3.0)}, {})
    both = Posterior({"ring": (1.5,)}, {}).over(below)
    seconds = lambda values: 1e15 / values.ring / values.window  # noqa: E731
    assert both.spread(Physics(), "nccl", seconds) == pytest.approx([-math.log(1.5), 0.0, -math.log(3)])


def test_what_lies_outside_the_points_is_named(tmp_path: Path) -> None:
    cells = [c.cell for c in measured()]
    posterior = replace(fit(measured(), CHOSEN).posterior(cells), steps={"ring": (1.1, 1.0)})
    posterior.write(tmp_path / "mine.fit.json")
    assert json.loads((tmp_path / "mine.fit.json").read_text()) == json.loads(json.dumps(asdict(posterior)))
    assert posterior.beyond(cells[0]) == []
    usual = ("algo=ddp", "cluster=bagua_paper", "transport=nccl")
    far = resolved("task=vgg16", *usual, "network.latency=100ms", "network.bandwidth=50gbit")
    assert posterior.beyond(far) == ["network.latency=100 ms (points: 0 ms to 0 ms)"]
    small = resolved("task=resnet50", *usual, "cluster.servers=2", "network.bandwidth=1gbit")
    servers, model = posterior.beyond(small)
    assert servers == "cluster.servers=2 (points: 16 to 16)"
    assert model.startswith("parameters=25,557,032 (points: 138,357,544")
    near = ("mode=simulate", "task=vgg16", *usual[1:], "network.bandwidth=10gbit")
    other, changed = "algo=qadam", ["network.jitter=1ms", "network.sites=2", "+cluster.slow_ranks.3=1.5"]
    changed += ["+cluster.server.1.latency=1ms", "network.flow_rates=[1gbit]"]
    assert posterior.beyond(resolved(*near, other, *changed)) == [
        "algo=qadam (points: bytegrad, ddp, decentralized)",
        "cluster.server=unequal (points: alike)",
        "network.flow_rates=limited (points: not limited)",
        "network.jitter=1 ms (points: 0 ms to 0 ms)",
        "network.sites=2 (points: 1 to 1)",
        "cluster.slow_ranks=1.5 (points: 1 to 1)",
    ]


def test_intervals_beyond_the_points_are_as_wide_as_errors_there_were() -> None:
    """Thirty predictions of another algorithm, all but the last two off by 30 %, the others by more."""
    cases, found = measured(), fit(measured(), CHOSEN, {"window": 3e6})
    other = [replace(c.cell, algo=resolved("algo=qadam").algo) for c in cases[:2]] * 15
    right = [c.predict(found.physics(c)) for c in (case(cell, 1.0) for cell in other)]
    asked = [replace(case(cell, 1.0), seconds=s / 1.3) for cell, s in zip(other, right, strict=True)]
    asked[-2:] = [replace(c, seconds=c.seconds / 2) for c in asked[-2:]]
    besides = quality.unseen(found, cases, asked)
    assert besides == pytest.approx(0.3, abs=0.05)
    assert sum(quality.inside(found, cases, asked, 1.1 * besides)) == 28
    assert sum(quality.inside(found, cases, asked, 0.1)) == 0
    assert quality.unseen(found, cases, asked[:19]) == 0.1, "too few to say"


def test_a_transport_s_own_parameter_has_its_own_uncertainty() -> None:
    posterior = Posterior({"ring": (2.0, 1.0), "nccl_bagua_net.ring": (1.0, 3.0)}, {})
    seconds = lambda values: 1e9 / values.ring  # noqa: E731
    assert posterior.spread(Physics(), "nccl", seconds) == pytest.approx([-math.log(2), 0.0])
    assert posterior.spread(Physics(), "nccl_bagua_net", seconds) == pytest.approx([0.0, -math.log(3)])


def test_few_points_do_not_claim_more_than_the_prior(own: Path) -> None:
    chosen = "algo=gradient_allreduce cluster.servers=2"
    source = calibration.open_source("mine", own.parent, [own], chosen)
    assert len(source.cases) < 2 * len(source.parameters)
    path = source.write(source.calibrate())
    assert OmegaConf.load(path).physics.uncertainty == Physics().uncertainty
    assert json.loads(path.with_name("mine.fit.json").read_text())["error_of"] == "", "it is assumed"


def test_held_out_points_are_predicted_without_them() -> None:
    cases = measured()
    cases[0] = replace(cases[0], seconds=3 * cases[0].seconds)  # a wrong measurement
    best = fit(cases, CHOSEN, {"window": 3e6})
    groups = [0, *[1] * (len(cases) - 1)]
    fits = quality.without(cases, groups, CHOSEN, best)
    errors = quality.held_out(cases, groups, fits)
    assert errors[0] == pytest.approx(-2 / 3, abs=0.05)


def test_folds_are_even_and_reproducible() -> None:
    folds = quality.folds(64, 5)
    assert folds == quality.folds(64, 5) != quality.folds(64, 5, seed=1)
    assert {folds.count(fold) for fold in range(5)} == {12, 13}


def test_ranking_leaves_close_pairs_out() -> None:
    data = pd.DataFrame(
        {"panel": ["a", "a", "a", "b"], "seconds": [1.0, 1.04, 2.0, 9.0], "predicted": [1.0, 0.9, 0.95, 1.0]}
    )
    assert quality.ranking(data) == (1, 2)


def test_physically_impossible_points_are_recognised() -> None:
    cell = resolved("mode=simulate", "task=vgg16", "algo=bytegrad", "cluster=bagua_paper", "network.bandwidth=10gbit")
    bound = 47e-3 + 259.4e6 / 1.25e9  # the forward pass, then all bytes at the line rate
    assert not case(cell, 0.85 * bound).is_possible
    assert case(cell, 1.05 * bound).is_possible


def test_published_points() -> None:
    points = published.points(PAPER_FOLDER)
    assert len(points) == 18 + 32 + 24 + 2
    assert len(published.distinct(points)) == 68
    ddp = next(p for p in points if p.figure == "bert_large_latency" and p.label == "pytorch_ddp" and p.latency == 5)
    assert (ddp.value, ddp.metric) == (904, "epoch_seconds")
    assert ddp.step_seconds(6) == pytest.approx(904 / 116)
    hidden = [p for p in points if not p.fitted]
    assert {(p.label, p.bandwidth) for p in hidden} == {
        ("bytegrad", 10), ("qadam", 10), ("low_precision_decentralized", 10)
    }  # fmt: skip
    assert [label for label, *_ in published.end_to_end(PAPER_FOLDER)] == ["bytegrad", "horovod", "ddp"]


def test_a_cluster_file_gives_the_parameters_back() -> None:
    values = [p.start for p in PAPER]
    kept = tree(values, PAPER, {})
    assert kept["transport"] == {"nccl_bagua_net": {"ring": 5.5e9}}
    assert physics(values, PAPER, {}, "nccl_bagua_net").ring == 5.5e9
    assert physics(values, PAPER, {}, "nccl").ring == 4e9


def test_calibrated_parameters_lie_in_their_ranges() -> None:
    given = resolved("mode=simulate", "cluster=bagua_paper").cluster.physics
    for parameter in PAPER:
        own = given["transport"][parameter.transport] if parameter.transport else given
        assert parameter.low * 0.999 <= own[parameter.name] <= parameter.high * 1.001, parameter.name


def test_errors_on_the_published_points_are_as_stated() -> None:
    """In the fit: mean below 6 %, and the order of at least 97 % of the pairs (README.md)."""
    from bagua_bench.calibrate.calibration import open_source

    data = open_source("bagua_paper", PAPER_FOLDER, None).errors()
    inside = data[data["role"] == "fitted"]
    assert inside["error"].abs().mean() < 0.06
    right, pairs = quality.ranking(inside)
    assert right / pairs >= 0.97
    assert len(data) - len(inside) == 4


@pytest.mark.parametrize(("settings", "kind"), [
    (["network.bandwidth=1gbit"], "bandwidth"),
    (["network.bandwidth=100gbit", "network.latency=50ms", "run.bucket_size=1MiB", "network.tcp_window=1GiB"],
     "latency"),
    (["network.bandwidth=100gbit", "task.step_seconds=20"], "compute"),
])  # fmt: skip
def test_advice_says_what_binds(settings: list[str], kind: str) -> None:
    cell = resolved(
        "mode=simulate", "task=vgg16", "algo=gradient_allreduce", "cluster.servers=4", *settings, "run.steps=1"
    )
    assert reasons.why(cell).startswith(f"{kind}-bound")


def test_advice_reckons_with_a_straggler() -> None:
    """What waits for it takes its time; what it waits for besides is still said."""
    asked = ("mode=simulate", "task=vgg16", "cluster=local_emulated", "cluster.servers=4", "network.bandwidth=100gbit")
    cells = [
        resolved(*asked, "algo=gradient_allreduce", "run.steps=2", *slow) for slow in ((), ("+cluster.slow_ranks.3=4",))
    ]
    even, late = (ranking.advise([cell])[0] for cell in cells)
    assert late.step_seconds == pytest.approx(4 * 32 / 229, rel=0.02)
    assert even.step_seconds < late.step_seconds / 3
    assert reasons.why(cells[1]).startswith("compute-bound")


def test_advice_is_sorted_and_compares_hierarchies(tmp_path: Path) -> None:
    cell = resolved("mode=simulate", "task=vgg16", "algo=bytegrad", "cluster=bagua_paper", "run.steps=1")
    variants = [way for form in candidates.forms(cell, "bytegrad") for way in candidates.ways(form)]
    assert len(variants) == 2 * (1 + len(candidates.BUCKETS) * len(candidates.CHANNELS))
    cells = []
    for rate in ("1gbit", "100gbit", "10gbit"):
        cells.append(
            resolved("mode=simulate", "task=vgg16", "cluster=bagua_paper", f"network.bandwidth={rate}", "run.steps=1")
        )
    rows = ranking.advise(cells)
    seconds = [row.step_seconds for row in rows]
    assert seconds == sorted(seconds)
    assert rows[0].epoch_seconds == pytest.approx(seconds[0] * 1_281_167 / 4096)


def test_advice_charges_for_what_is_not_sent_every_step() -> None:
    seldom = resolved("mode=simulate", "task=vgg16", "algo=decentralized", "algo.interval=4", "cluster=bagua_paper")
    assert candidates.length(seldom.run, facts.algorithm(seldom.algo)).steps == 4


TWO_CORES = {"efficiency_ring": 0.85, "efficiency_direct": 0.55, "efficiency_fade": 0.15, "latency": 3e-4, "call": 1e-3}


def emulated(file: Path, *asked: str, seconds: float | None = None) -> None:
    """Append a record of a made-up scale model: of the step time that the simulator gives it, or of another."""
    cell = resolved("mode=emulate", "compute.shrink=100", "run.steps=1", *asked)
    result = simulate(with_physics(replace(cell, mode="simulate"), transport={"gloo": GLOO}, **TWO_CORES))
    [rank] = result.ranks
    if seconds is not None:
        slow = tuple({**step, "step": seconds} for step in rank.seconds)
        result = replace(result, ranks=(replace(rank, seconds=slow),))
    made = records.make_record(cell, "runs", 0, datetime.now(timezone.utc))
    records.append(file, records.complete(made, result))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of VGG16 at two rates, which fit, and one of another algorithm, three times as slow as it should be."""
    file = tmp_path / "records.jsonl"
    for algo in ("gradient_allreduce", "bytegrad"):
        for servers in (2, 4):
            for rate in ("1gbit", "10gbit"):
                emulated(file, f"algo={algo}", f"cluster.servers={servers}", f"network.bandwidth={rate}")
    emulated(file, "algo=low_precision_decentralized", "cluster.servers=4", "network.bandwidth=1gbit", seconds=30.0)
    (tmp_path / "cluster").mkdir()
    monkeypatch.setattr(calibration, "cluster_folder", lambda: tmp_path / "cluster")
    return file


def test_records_calibrate_a_cluster(own: Path) -> None:
    """The file that is written predicts what was in the fit, and only what was in the fit has formed it."""
    chosen = "algo=gradient_allreduce,bytegrad network.bandwidth=1gbit,10gbit"
    source = calibration.open_source("mine", own.parent, [own], chosen)
    assert [k.role for k in source.known] == ["fitted"] * 8 + ["predicted"]
    found = source.calibrate()
    assert np.abs(found.errors(source.cases)).max() < 0.02
    source.write(found)
    assert calibration.fit_of("mine") == chosen
    known = json.loads((own.parent / "cluster" / "mine.fit.json").read_text())["domain"]
    assert known["network.bandwidth"] == [1e7, 1e8], "1 and 10 Gbit/s in a scale model of 1 to 100"
    assert known["network.tcp_window"] == [4 * 2**20 // 100] * 2
    errors = source.errors().set_index("label")["error"]
    assert errors.drop("low_precision_decentralized").abs().max() < 0.02
    assert errors["low_precision_decentralized"] < -0.5
    tables = dict(source.validate())
    assert tables["the fit uses"] == chosen
    assert tables["all predicted points"]["points"].item() == 1
    assert tables["all points in the fit"]["worst"].item() < 2 < 50 < tables["all predicted points"]["worst"].item()
    assert list(tables["points in the fit, by system or algorithm"].index) == ["bytegrad", "gradient_allreduce"]


def test_without_a_selection_all_records_are_fitted(own: Path) -> None:
    source = calibration.open_source("mine", own.parent, [own])
    assert {k.role for k in source.known} == {"fitted"}
    assert source.left_out == ""


def test_what_was_thought_of_the_cluster_when_a_record_was_made_does_not_count(own: Path) -> None:
    first = records.read([own])[0]
    outdated = {**first["config"]["cluster"], "physics": {"a_key_of_old": 1.0}}
    records.append(own, {**first, "config": {**first["config"], "cluster": outdated}, "cell": "outdated"})
    source = calibration.open_source("mine", own.parent, [own])
    assert source.left_out == "" and len(source.known) == 9 + 1
    assert source.cases[-1].predict(Physics()) == source.cases[0].predict(Physics())


def test_records_that_cannot_be_simulated_are_left_out_and_counted(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = records.read([own])[0]
    layerless = resolved("task=quadratic").to_json()
    deleted = {**first["config"], "algo": {"name": "gone", "_target_": "algorithms.gone.Gone"}}
    half = {**first["config"], "run": {**first["config"]["run"], "precision": "bf16"}}
    for change in (
        {"config": layerless, "cell": "quadratic", "source": "measured"},
        {"config": deleted, "cell": "gone"},
        {"config": half, "cell": "half"},
        {"status": "failed", "result": None},
        {"status": "failed", "result": None},
        {"source": "simulated"},
    ):
        records.append(own, {**first, **change})
    source = calibration.open_source("mine", own.parent, [own])
    assert len(source.known) == 9 + 1, "what was computed in half precision takes the time that was measured"
    assert source.left_out == (
        "left out 5 of 15 records: 1 (mode=simulate: task=quadratic has no layers whose time could be modelled), "
        "1 (algo._target_=algorithms.gone.Gone: there is no module 'algorithms.gone'), 2 failed, 1 simulated"
    )
    own.write_text("\n".join(line for line in own.read_text().splitlines() if '"failed"' in line))
    monkeypatch.setattr("sys.argv", ["simulate", "calibrate", "--cluster", "mine", "--records", str(own)])
    assert main() == 2
    said = capsys.readouterr().err
    assert "no record of a finished" in said and "left out 2 of 2" in said and said.count("\n") == 1


@pytest.mark.parametrize(("chosen", "message"), [
    ("task=bert_large", "none of the 9 cells"),
    ("network.bandwith=10gbit", r"--fit network\.bandwith=10gbit: .*bandwith"),
    ("network.bandwidth=fast", "--fit network.bandwidth=fast"),
    ("algo=bytegrd", "bytegrd"),
    ("vgg16", "--fit vgg16"),
])  # fmt: skip
def test_a_selection_that_cannot_be_is_refused(own: Path, chosen: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        calibration.open_source("mine", own.parent, [own], chosen)
    assert "\n" not in str(refused.value)


def test_a_transport_may_have_a_value_of_its_own(own: Path) -> None:
    source = calibration.open_source("mine", own.parent, [own]).with_own("gloo.call")
    *before, added = source.parameters
    assert added.key == "call (gloo)" and "call" in {p.key for p in before}
    values = [2 * p.start if p is added else p.start for p in source.parameters]
    call = {name: physics(values, source.parameters, source.base, name).call for name in ("gloo", "nccl")}
    assert call == {"gloo": 2 * added.start, "nccl": added.start}
    with pytest.raises(ValueError, match=r"--also gloo\.call: is in the fit anyway"):
        source.with_own("gloo.call")
    for wanted in ("gloo.calls", "nccl.call", "call"):
        with pytest.raises(ValueError, match=rf"--also {wanted}: allowed: gloo, then call\|"):
            source.with_own(wanted)


def test_a_selection_needs_records() -> None:
    with pytest.raises(ValueError, match="--fit task=vgg16"):
        calibration.open_source("bagua_paper", PAPER_FOLDER, None, "task=vgg16")


@pytest.mark.parametrize(("arguments", "message"), [
    (["validate", "--fit", "task=vgg16"], "goes with calibrate"),
    (["validate", "--also", "gloo.call"], "goes with calibrate"),
    (["validate", "--cluster", "nowhere", "--records", "x.jsonl"], "--cluster nowhere"),
    (["calibrate", "--records", "x.jsonl"], "x.jsonl"),
])  # fmt: skip
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate", *arguments])
    assert main() == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_a_small_loss_is_not_none() -> None:
    assert _words("network.loss", 0.002) == "0.2%"
