"""The simulator: the shapes that its predictions must have, its parameters, and what it costs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.physics import Physics, physics_of
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.machine.compute import Compute
from bagua_bench.simulate.clock import Clock
from bagua_bench.simulate.cluster import Links, cluster_of
from bagua_bench.simulate.rehearsal import rehearse
from bagua_bench.simulate.run import simulate
from tests.catalogue import declared, resolved, runnable, simulable, with_physics

ENGINE = [name for name in runnable() if not declared(name).peer]
SYNCHRONOUS = [name for name in simulable() if not declared(name).rounds]


def cell(*overrides: str) -> Cell:
    return resolved("mode=simulate", "run.steps=2", "cluster=bagua_paper", *overrides)


def step(*overrides: str) -> float:
    return float(simulate(cell(*overrides)).ranks[0].seconds[-1]["step"])


@pytest.mark.parametrize("algo", SYNCHRONOUS)
def test_without_a_network_to_wait_for_only_computing_is_left(algo: str) -> None:
    infinite = {
        "line": 1e30,
        "ring": 1e30,
        "process": 1e30,
        "servers": 1e30,
        "inside": 1e30,
        "window": 1e30,
    }
    zero = {"latency": 0.0, "inside_latency": 0.0, "inside_hop": 0.0}
    chosen = cell("task=vgg16", f"algo={algo}", "compute.memory_bandwidth=1e30GB")
    chosen = with_physics(chosen, **infinite, **zero)
    seconds = simulate(chosen).ranks[0].seconds[-1]["step"]
    slack = 5e-3 if algo == "horovod" else 0  # its cycle
    assert 32 / 229 * 0.999 <= seconds <= 32 / 229 * 1.001 + slack


@pytest.mark.parametrize("haste", [8, 0.25])
@pytest.mark.parametrize("algo", ["gradient_allreduce", "bytegrad", "async", "horovod"])
def test_a_hasty_scale_model_records_the_times_of_the_original(algo: str, haste: float) -> None:
    """On a network whose software is free, to the last digit but for rounding: seconds only change their unit."""
    results = []
    for factor in (1, haste):
        asked = [f"algo={algo}", "cluster.ranks_per_server=1", "network=10gbit", "network.latency=2ms"]
        chosen = cell("task=vgg16", f"compute.haste={factor}", *asked)
        rates = dict.fromkeys(("ring", "process", "servers", "shaped", "inside"), 1e30)
        times = dict.fromkeys(("latency", "inside_latency", "inside_hop", "call"), 0.0)
        results.append(simulate(with_physics(chosen, **rates, **times)))
    whole, quick = results
    assert quick.ranks[0].sent == pytest.approx(whole.ranks[0].sent)
    for one, other in zip(quick.ranks[0].seconds, whole.ranks[0].seconds, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    if whole.averaging is not None:
        assert quick.averaging.round_seconds == pytest.approx(whole.averaging.round_seconds, rel=1e-3)


@pytest.mark.parametrize("algo", ["gradient_allreduce", "bytegrad", "decentralized"])
def test_a_scale_model_takes_the_time_of_the_original(algo: str) -> None:
    """On a network whose software is free: bytes, buckets, rates and windows are smaller by the same factor."""
    results = []
    for factor in (1, 100):
        asked = [f"algo={algo}", "cluster.ranks_per_server=1", "network=10gbit", "network.latency=2ms"]
        chosen = cell("task=vgg16", f"compute.shrink={factor}", *asked)
        chosen = with_physics(chosen, **dict.fromkeys(("ring", "process"), 1e30))
        results.append(simulate(chosen).ranks[0])
    whole, small = results
    assert small.seconds[-1]["step"] == pytest.approx(whole.seconds[-1]["step"], rel=0.01)
    assert small.sent["flat"] == pytest.approx(whole.sent["flat"] / 100, rel=0.01)


@pytest.mark.parametrize(
    ("asked", "lanes"),
    [
        ("network.latency=50ms", 2.0),
        ("network.bandwidth=100mbit", 1.0),
        ("network.latency=50ms network.tcp_window=16KiB", 1.0),
    ],
)
def test_two_collectives_at_a_time_hide_latencies_but_share_the_line(asked: str, lanes: float) -> None:
    """DDP's 37 buckets of BERT-Large: in half the time where latency counts, in the same where bytes do.

    Waiting for a window counts as bytes do, for the lanes share the connections.
    """

    def waiting(**physics: float) -> float:
        wide = "network.tcp_window=100GiB"
        chosen = cell("task=bert_large", "algo=ddp", "cluster.ranks_per_server=1", wide, *asked.split())
        chosen = with_physics(chosen, **{"ring": 1e30, "line": 1e15, **physics})
        return float(simulate(chosen).ranks[0].seconds[-1]["step"])

    one, two = waiting(), waiting(lanes=2.0)
    assert one / two == pytest.approx(lanes, rel=0.05)


def test_what_a_hook_does_to_a_bucket_stands_in_the_same_lane_as_its_collective() -> None:
    """DDP in float16 over a slow line: half the time, whatever the number of lanes; over a fast one: its casts."""

    def step(algo: str, lanes: float, rate: float, memory: float = 1e30) -> float:
        chosen = cell("task=bert_large", f"algo={algo}", "cluster.ranks_per_server=1", "network.tcp_window=100GiB")
        assert chosen.compute is not None
        chosen = replace(chosen, compute=replace(chosen.compute, memory_bandwidth=memory))
        rates = {"ring": 1e30, "process": 1e30, "line": rate}
        return float(simulate(with_physics(chosen, lanes=lanes, latency=0.0, **rates)).ranks[0].seconds[-1]["step"])

    for lanes in (1.0, 2.0):
        assert step("ddp", lanes, 1e8) / step("ddp_fp16", lanes, 1e8) == pytest.approx(2, rel=0.05)
    casts = [step("ddp_fp16", lanes, 1e15, memory=1e9) - step("ddp", lanes, 1e15, memory=1e9) for lanes in (1.0, 2.0)]
    assert casts[0] == pytest.approx(2 * casts[1], rel=0.2), "two lanes cast two buckets at a time"


@pytest.mark.parametrize(("algo", "traffic"), [("bytegrad", 1 / 4), ("decentralized", 8 / 15), ("ddp", 127 / 120)])
def test_at_low_bandwidth_times_are_as_bytes(algo: str, traffic: float) -> None:
    """Against the leaders' ring, 2 (15 / 16) S, with equal efficiencies."""

    def seconds(algo: str, *more: str) -> float:
        chosen = cell("task=vgg16", f"algo={algo}", "network.bandwidth=10mbit", *more)
        chosen = with_physics(chosen, efficiency_ring=0.9, efficiency_direct=0.9)
        return float(simulate(chosen).ranks[0].seconds[-1]["step"])

    ring = seconds("gradient_allreduce", "algo.hierarchical=true")
    assert seconds(algo) / ring == pytest.approx(traffic, rel=0.02)


def test_exposed_latency_is_paid_per_bucket_and_hop() -> None:
    slope = (
        step("task=bert_large", "algo=ddp", "network.latency=30ms", "network.bandwidth=100gbit")
        - step("task=bert_large", "algo=ddp", "network.latency=20ms", "network.bandwidth=100gbit")
    ) / 10e-3
    stalls = slope - 37 * 30
    assert stalls >= 0, "beyond 30 hops per bucket there is only waiting for windows"
    chosen = [cell("task=bert_large", "algo=ddp", f"network.latency={ms}ms") for ms in (20, 30)]
    times = [simulate(with_physics(one, window=1e15)).ranks[0].seconds[-1]["step"] for one in chosen]
    assert (times[1] - times[0]) / 10e-3 == pytest.approx(37 * 30, rel=1e-6)


def test_overlap_hides_at_most_the_shorter_of_the_two() -> None:
    for algo in ("gradient_allreduce", "bytegrad"):
        for rate in ("1gbit", "10gbit", "100gbit"):
            common = ["task=vgg16", f"algo={algo}", f"network.bandwidth={rate}"]
            beside, after = step(*common), step(*common, "run.overlap=false")
            communication = after - 32 / 229
            assert 0 <= after - beside <= min(2 / 3 * 32 / 229, communication) + 1e-9


def test_fusion_saves_latencies_and_nothing_else() -> None:
    def seconds(bucket: str, latency: float) -> float:
        chosen = cell("task=bert_large", "algo=gradient_allreduce", "run.overlap=false", f"run.bucket_size={bucket}")
        chosen = with_physics(chosen, latency=latency, inside_hop=0.0, inside_latency=0.0, window=1e30)
        return float(simulate(chosen).ranks[0].seconds[-1]["step"])

    assert seconds("0B", 1e-3) > seconds("10MiB", 1e-3)
    assert seconds("0B", 0.0) == pytest.approx(seconds("10MiB", 0.0), rel=1e-6)


def test_low_precision_decentralized_sends_the_same_however_many_there_are() -> None:
    sent = [
        simulate(cell("task=vgg16", "algo=low_precision_decentralized", f"cluster.servers={n}")).ranks[0].sent
        for n in (4, 64)
    ]
    assert sent[0]["inter"] == pytest.approx(sent[1]["inter"], rel=1e-3)


def test_async_does_not_wait_and_gets_staler_on_slow_networks() -> None:
    results = [
        simulate(cell("task=vgg16", "algo=async", "run.steps=300", f"network.bandwidth={rate}"))
        for rate in ("100gbit", "10gbit", "1gbit")
    ]
    for result in results:
        mean = sum(s["step"] for s in result.ranks[0].seconds) / 300
        assert mean == pytest.approx(32 / 229, rel=0.01)
    averaging = [result.averaging for result in results if result.averaging is not None]
    stale = [each.staleness_steps for each in averaging]
    assert len(stale) == 3 and stale == sorted(stale) and stale[2] > 20
    rounds = [each.rounds for each in averaging]
    assert rounds == sorted(rounds, reverse=True) and rounds[2] > 0
    interval = averaging[0].round_seconds
    assert interval == pytest.approx(0.5 + 0.3, abs=0.3), "the pause, and an all-reduce at 100 Gbit/s"


def test_one_straggler_slows_down_all_that_wait_for_it() -> None:
    def seconds(algo: str, *more: str) -> list[float]:
        result = simulate(cell("task=vgg16", f"algo={algo}", "network.bandwidth=100gbit", *more))
        return [rank.seconds[-1]["step"] for rank in result.ranks]

    slow = "cluster.slow_ranks.5=2.0"
    assert min(seconds("bytegrad", slow)) > 1.25 * max(seconds("bytegrad"))
    assert min(seconds("async", slow)) == pytest.approx(min(seconds("async")), rel=0.05)
    assert max(seconds("async", slow)) > 1.8 * min(seconds("async"))


def test_horovod_sends_more_and_smaller_messages_with_a_short_cycle() -> None:
    slow = step("task=bert_large", "algo=horovod", "network.latency=2ms", "algo.fusion_threshold=1MiB")
    fast = step("task=bert_large", "algo=horovod", "network.latency=2ms", "algo.fusion_threshold=64MiB")
    assert slow > 1.5 * fast


# -- parameters and cost ----------------------------------------------------------------------------------------------


def test_a_transport_s_own_parameters_come_first() -> None:
    chosen = cell("task=vgg16", "transport=gloo")
    own = {"gloo": {"process": 2e9}, "nccl": {"window": 1}}
    assert physics_of(with_physics(chosen, process=1e9, transport=own).cluster, "gloo") == replace(
        Physics(), process=2e9
    )


@pytest.mark.parametrize(("given", "said"), [
    ("+cluster.physics.conection=1", "cluster.physics.conection=1: no such key; allowed: call, carry_over, "),
    ("+cluster.physics.connection=1e9", "cluster.physics.connection=1000000000.0: no such key"),  # it once was one
    ("+cluster.physics.ring=0", "cluster.physics.ring=0: must be positive"),
    ("+cluster.physics.ring=nan", "cluster.physics.ring=nan: must be positive"),
    ("+cluster.physics.ring=fast", "cluster.physics.ring=fast: must be a number"),
    ("+cluster.physics.window=-1", "cluster.physics.window=-1: must be positive"),
    ("+cluster.physics.efficiency_ring=1.5", "cluster.physics.efficiency_ring=1.5: must be above 0 and at most 1"),
    ("+cluster.physics.transport.nccl.process=-3", "cluster.physics.transport.nccl.process=-3: must be positive"),
    ("+cluster.physics.transport.nccl=3", "cluster.physics.transport.nccl=3: expected a parameter after it"),
    ("+cluster.physics.transport.nccl2.ring=1e9", "cluster.physics.transport.nccl2={'ring': 1000000000.0}: no such"),
    ("+cluster.physics.transport=3", "cluster.physics.transport=3: expected the name of a transport after it"),
    ("network.loss=20%", "network.loss=20%: TCP's rate under loss is known up to 10%; allowed: no more"),
    ("+cluster.server.1.loss=20%", "cluster.server.1.loss=20%: TCP's rate under loss is known up to 10%"),
    ("run.precision=bf16", "run.precision=bf16: mode=simulate computes nothing; allowed: fp32; times of other"),
    ("task.step_seconds=0", "task.step_seconds=0: must be positive, or null for the profile's"),
])  # fmt: skip
def test_impossible_parameters_are_refused_in_one_line(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(resolved("mode=simulate", "task=vgg16", "algo=bytegrad", "cluster.servers=2", given))
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_records_with_parameters_that_are_no_more_can_be_predicted() -> None:
    chosen = with_physics(cell("task=vgg16"), connection=1e9, interference=0.1, efficiency_servers=0.8, process=2e9)
    assert physics_of(chosen.cluster, "gloo").process == 2e9


def test_latency_is_no_cliff_unless_software_adds_it() -> None:
    """README's cluster: a nanosecond changes nothing; software that adds the delay is slower than the line."""
    asked = ("task=bert_large", "cluster=bagua_paper", "transport=nccl", "network.bandwidth=100gbit", "algo=ddp")
    none, some = step(*asked), step(*asked, "network.latency=0.001us")
    assert some == pytest.approx(none, rel=1e-3)
    assert step(*asked, "network.latency=0.001us", "network.software_delay=true") > 1.5 * none


def test_a_parameter_server_waits_for_its_windows_and_for_lost_packets() -> None:
    asked = ("task=bert_large", "cluster=bagua_paper", "transport=nccl", "network.bandwidth=100gbit", "algo=byteps")
    lossy = step(*asked, "network.loss=1%", "network.latency=1ms")
    assert lossy > 5 * step(*asked, "network.latency=1ms")
    small = step(*asked, "network.latency=5ms", "network.tcp_window=64KiB")
    assert small > 2 * step(*asked, "network.latency=5ms")
    steps = [step(*asked, f"network.latency={k / 4}ms") for k in range(13)]
    rises = [b - a for a, b in pairwise(steps)]
    assert min(rises) > 0, "every millisecond costs something"
    assert max(later / earlier for earlier, later in pairwise(rises)) < 1.6, "no kink"


def test_the_slowest_link_counts() -> None:
    chosen = cell("network.bandwidth=10gbit", "network.latency=1ms", "cluster.servers=4")
    chosen = replace(chosen, cluster=replace(chosen.cluster, server={"2": {"bandwidth": 1e9}}))
    assert cluster_of(chosen).network == Links(line=1e9 / 8, latency=1e-3)


def test_two_hundred_cells_of_128_ranks_cost_little_once_traced() -> None:
    """A ratio within one run, of CPU times: evaluating a cell against recording it."""
    cold = cell("task=bert_large", "algo=bytegrad", "run.steps=3", "run.bucket_size=11MiB", "run.channels=1")
    began = time.process_time()
    program = rehearse(cold)
    rehearsed = time.process_time() - began
    chosen = cell("task=bert_large", "algo=bytegrad")
    compute = Compute(0.17, 0.34, 0.014, 675e9, "")
    began = time.process_time()
    for rate in range(1, 201):
        asked = replace(chosen, network=replace(chosen.network, bandwidth=rate * 1e9))
        Clock(cluster_of(asked), compute).run(program)
    assert (time.process_time() - began) / 200 < rehearsed / 5


def test_ten_thousand_ranks() -> None:
    chosen = cell("task=vgg16", "algo=bytegrad", "cluster.servers=10000", "cluster.ranks_per_server=1")
    result = simulate(chosen)
    assert result.samples_per_step == 320_000
    json.dumps(result.to_json())
