"""What ranks do when: noted in real and in simulated steps alike, and written for Perfetto."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.codecs.base import Codec
from bagua_bench.comm import CountedComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.validate import validate
from bagua_bench.emulate.emulation import Emulation
from bagua_bench.engine.trace import Trace
from bagua_bench.results import trace as written
from bagua_bench.results.phases import PHASES
from bagua_bench.results.result import NOT_CHECKED, Carried, RankResult, Result, Span
from bagua_bench.simulate.run import simulate
from bagua_bench.worker.build import make_trainer
from bagua_bench.worker.loop import Loop
from tests.catalogue import resolved
from tests.ranks import run

CPU = torch.device("cpu")
ALGOS = {
    "gradient_allreduce": [],
    "bytegrad": [],
    "qadam": ["algo.warmup_steps=2"],
    "decentralized": [],
    "low_precision_decentralized": [],
}


@pytest.fixture(autouse=True)
def codecs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulation puts something in their place, for the whole process."""
    monkeypatch.setattr(Codec, "stand_in", None)


def cell(mode: str, algo: str, *overrides: str) -> Cell:
    common = ["task=vgg16", "task.scale=tiny", "task.step_seconds=20ms", "cluster=2x2", "network.bandwidth=1gbit"]
    run = ["run.bucket_size=100kB", "run.channels=2", "run.untimed=2", "run.steps=3", "run.trace=true"]
    return resolved(f"mode={mode}", f"algo={algo}", *common, *run, *overrides)


def real_steps(comm: CountedComm, chosen: Cell) -> RankResult:
    """As in `mode=emulate`."""
    emulation, trace = Emulation(chosen, comm.rank), Trace(CPU)
    model = emulation.task.model()
    made = make_trainer(chosen, model, emulation.task.optimizer(model), comm, emulation.perform, trace)
    with made as trainer, emulation.attached(trainer):
        loop = Loop(trainer, emulation.task, CPU, 1, lambda *_: None, trace=trace)
        batches = emulation.task.batches(comm.rank, comm.size, 0)
        loop.take(batches, chosen.run.untimed, "untimed")
        trace.start()
        seconds, losses = loop.take(batches, chosen.run.steps, "timed")
        spans = trace.spans()
    return RankResult(tuple(seconds), tuple(losses), trainer.sent(), {}, None, spans=spans)


def communication(rank: RankResult) -> dict[str, list[Any]]:
    """What every channel did, in order."""
    found = defaultdict(list)
    for span in rank.spans:
        if span.track.startswith("channel") and span.name != "arithmetic":
            found[span.track].append((span.name, span.nbytes, span.level))
    return dict(found)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_simulated_rank_communicates_as_a_real_one(algo: str) -> None:
    """The same buckets and collectives on the same channels, in the same order."""
    simulated = simulate(cell("simulate", algo, *ALGOS[algo])).ranks[0]
    real = run("threads", 4, real_steps, cell("emulate", algo, *ALGOS[algo]), per_server=2)[0]
    assert communication(real) == communication(simulated)
    assert "bucket 0" in {name for name, *_ in communication(real)["channel 0"]}


@pytest.mark.parametrize("mode", ["simulate", "emulate"])
def test_steps_and_phases_are_those_that_are_counted(mode: str) -> None:
    chosen = cell(mode, "bytegrad", "+cluster.slow_ranks.1=2")
    ranks = simulate(chosen).ranks if mode == "simulate" else run("threads", 4, real_steps, chosen, per_server=2)
    assert len(ranks) == 4
    for rank in ranks:
        own = [span for span in rank.spans if span.track == "training"]
        steps = [span for span in own if span.name == "step"]
        if mode == "simulate" and not own:  # of the members of a server nothing is noted
            assert rank is not ranks[0]
            continue
        assert [span.seconds for span in steps] == pytest.approx([step["step"] for step in rank.seconds])
        assert all(later.begin >= one.begin + one.seconds - 1e-9 for one, later in pairwise(steps))
        for phase in PHASES:
            counted = sum(step[phase] for step in rank.seconds)
            assert sum(span.seconds for span in own if span.name == phase) == pytest.approx(counted, abs=1e-9)


@pytest.mark.parametrize("mode", ["simulate", "emulate"])
def test_what_a_channel_does_is_one_after_the_other(mode: str) -> None:
    """Collectives lie within the communication of a bucket, and those of a channel do not overlap."""
    chosen = cell(mode, "bytegrad")
    ranks = simulate(chosen).ranks if mode == "simulate" else run("threads", 4, real_steps, chosen, per_server=2)
    spans = [span for span in ranks[0].spans if span.track == "channel 1"]
    buckets = [span for span in spans if span.name.startswith("bucket")]
    within = [span for span in spans if not span.name.startswith("bucket")]
    assert len(buckets) > 1 and len(within) > len(buckets)
    for several in (buckets, within):
        assert all(later.begin >= one.begin + one.seconds - 1e-9 for one, later in pairwise(several))
    for span in within:
        ends = span.begin + span.seconds
        assert any(b.begin - 1e-9 <= span.begin and ends <= b.begin + b.seconds + 1e-9 for b in buckets)


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end as Perfetto reads them: begin and length are cut to nanoseconds, each by itself."""
    begin = int(event["ts"] * 1000)
    return begin, begin + int(event["dur"] * 1000)


@pytest.mark.parametrize("mode", ["simulate", "emulate"])
def test_what_lies_in_something_else_does_so_in_the_file(tmp_path: Path, mode: str) -> None:
    """Perfetto drops what overlaps the end of what it lies in, be it by a nanosecond."""
    chosen = cell(mode, "low_precision_decentralized")
    ranks = simulate(chosen).ranks if mode == "simulate" else run("threads", 4, real_steps, chosen, per_server=2)
    result = replace(simulate(chosen), ranks=tuple(ranks), rank_counts=None)
    written.write(tmp_path / "a.json", result, "a run")
    events = [e for e in json.loads((tmp_path / "a.json").read_text())["traceEvents"] if e["ph"] == "X"]
    threads = defaultdict(list)
    for event in events:
        threads[event["tid"]].append(nanoseconds(event))
    assert len(threads) >= 3
    for spans in threads.values():
        around: list[int] = []
        for begin, end in spans:
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_classes_of_ranks_end_a_collective_together() -> None:
    """Also in the last of several steps, of which one class's are shorter."""
    chosen = cell("simulate", "gradient_allreduce", "cluster=4x1", "+cluster.slow_ranks.1=2", "run.steps=6")
    first, second = (rank for rank in simulate(chosen).ranks if rank.spans)
    ends = [[s.begin + s.seconds for s in rank.spans if s.name == "all_reduce"] for rank in (first, second)]
    assert ends[0] == pytest.approx(ends[1]) and len(ends[0]) > 6


def test_simulated_rounds_are_noted() -> None:
    rank = simulate(cell("simulate", "async")).ranks[0]
    rounds = [span for span in rank.spans if span.track == "averaging"]
    assert {span.name for span in rounds} == {"snapshot", "exchange", "apply"}


def test_real_rounds_are_noted() -> None:
    for rank in run(
        "threads", 4, real_steps, cell("emulate", "async", "algo.interval_ms=1", "run.steps=10"), per_server=2
    ):
        names = [span.name for span in rank.spans if span.track == "averaging"]
        assert {"snapshot", "exchange"} <= {*names}


def test_a_peers_simulated_collectives_are_noted() -> None:
    spans = simulate(cell("simulate", "ddp")).ranks[0].spans
    assert {span.name for span in spans if span.track.startswith("channel")} == {"all_reduce"}


def test_nothing_is_noted_unless_it_is_asked_for() -> None:
    chosen = cell("simulate", "bytegrad")
    silent = replace(chosen, run=replace(chosen.run, trace=None))
    assert not any(rank.spans for rank in simulate(silent).ranks)
    assert silent.id != chosen.id, "noting takes time, so that no figure mixes them"
    assert [rank.seconds for rank in simulate(silent).ranks] == [rank.seconds for rank in simulate(chosen).ranks]


def test_a_run_that_was_quicker_is_noted_at_its_own_pace() -> None:
    plain, quick = (simulate(cell("simulate", "bytegrad", *more)).ranks[0] for more in ([], ["compute.haste=4"]))
    assert sum(s.seconds for s in quick.spans) == pytest.approx(sum(s.seconds for s in plain.spans), rel=0.2)


def test_the_file_is_what_perfetto_reads(tmp_path: Path) -> None:
    spans = (Span("training", "step", 0.5, 0.25), Span("channel 0", "all_reduce", 0.5, 0.125, 4000.0, "inter"))
    ranks = (RankResult((), (), {}, {}, None, spans=spans), RankResult((), (), {}, {}, None, spans=spans[:1]))
    result = Result(
        ranks=ranks,
        checks=NOT_CHECKED,
        samples_per_step=1,
        samples_per_epoch=1,
        synthetic=True,
        warmup_steps=0,
        parameters=1,
    )
    path = tmp_path / "traces" / "one.json"
    written.write(path, result, "a run")
    events = json.loads(path.read_text())["traceEvents"]
    done = [event for event in events if event["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in done] == [
        (0, "step", 0.5e6, 0.25e6),
        (0, "all_reduce", 0.5e6, 0.125e6),
        (1, "step", 0.5e6, 0.25e6),
    ]
    assert done[1]["args"] == {"bytes": 4000.0, "level": "inter"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {names[e["pid"], e["tid"]] for e in done} == {"training", "channel 0"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    assert len({(e["tid"]) for e in done}) == 3, "no thread has the number of another process's"


def test_what_is_sent_is_a_counter_of_its_rate(tmp_path: Path) -> None:
    """Perfetto holds a value until the next one: 0 where nothing was noted."""
    spans = (Span("training", "step", 0.0, 2.0),)
    carried = (
        Carried("1", 0.0, 0.5, (2e6, 1e6), (0, 0)),
        Carried("1", 0.5, 1.0, (3e6, 0), (0, 7)),
        Carried("0 10.0.0.1:5", 0.5, 1.0, (1e6,), (0,)),
        Carried("1", 2.5, 0.5, (1e6, 1e6), (0, 0)),
    )
    rank = RankResult((), (), {}, {}, None, spans=spans, carried=carried)
    result = replace(simulate(cell("simulate", "ddp")), ranks=(rank,), rank_counts=None)
    written.write(tmp_path / "a.json", result, "a run")
    events = [e for e in json.loads((tmp_path / "a.json").read_text())["traceEvents"] if e["ph"] == "C"]
    found = defaultdict(list)
    for event in events:
        found[event["name"]].append((event["ts"] / 1e6, *event["args"].values()))
    assert found == {
        "MB/s to rank 1": [(0, 4, 2), (0.5, 3, 0), (1.5, 0, 0), (2.5, 2, 2), (3.0, 0, 0)],
        "segments sent again to rank 1": [(0, 0, 0), (0.5, 0, 7), (1.5, 0, 0), (2.5, 0, 0), (3.0, 0, 0)],
        "MB/s to 0 10.0.0.1:5": [(0.5, 1), (1.5, 0)],
    }


def test_what_is_sent_is_counted_from_step_to_step() -> None:
    sent, streams = [100], 1  # the warm-up's

    def counts() -> dict[str, list[dict[str, float]]]:
        return {"1": [{"bytes_sent": sent[0], "retransmissions": 2}] * streams, "2": []}

    trace = Trace(CPU, counts)
    trace.step_taken()  # before the start
    trace.start()
    for nbytes in (5, 0, 7):
        sent[0] += nbytes
        trace.step_taken()
    streams = 2  # a connection was opened
    trace.step_taken()
    first, second, opened = trace.carried()  # a step in which nothing was sent is not noted
    assert [(one.sent, one.again) for one in (first, second, opened)] == [
        ((5,), (0,)),
        ((7,), (0,)),
        ((0, 112), (0, 2)),
    ]
    assert 0 <= first.begin <= first.begin + first.seconds <= second.begin
    assert first.slowed(3) == replace(first, begin=3 * first.begin, seconds=3 * first.seconds)


def test_an_elastic_run_has_no_trace() -> None:
    chosen = cell("simulate", "gradient_allreduce")
    elastic = resolved("run.elastic=true").run.elastic
    with pytest.raises(ValueError, match=r"run\.trace=true: the steps of an elastic run"):
        validate(replace(chosen, mode="measure", compute=None, run=replace(chosen.run, elastic=elastic)))
