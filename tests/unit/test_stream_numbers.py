"""How many streams Bagua-Net has: the suite counts on the number that the transport chooses."""

from __future__ import annotations

from itertools import combinations

import pytest

from bagua_bench.configuration import network_shape
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import longest_trip, shape_of, streams
from bagua_bench.machine.scale import scale_model
from bagua_bench.simulate.bagua_net import FEW_BYTES, TREE_BYTES
from bagua_bench.simulate.cluster import PART
from tests.catalogue import HOME, resolved

STREAMS = [
    (["network.latency=1ms"], 4),
    (["network.latency=20ms"], 80),
    (["network.latency=400ms"], 512),
    (["network.latency=1ms", "+cluster.server.1.latency=19ms"], 40),
    (["network.latency=1ms", "+cluster.server.1.latency=19ms", "+cluster.server.0.latency=41ms"], 120),
    (["network.latency=1ms", "network.sites=2", "network.wan.latency=29ms"], 120),
    (["network.sites=2", "network.wan.latency=5ms", "+cluster.server.0.latency=30ms"], 80),
    (["network.latency=9ms", "network.sites=2", *(f"+cluster.server.{k}.latency=1ms" for k in range(4))], 4),
    (["network.sites=2", "network.wan.latency=5ms", *(f"+cluster.server.{k}.latency=30ms" for k in (0, 1))], 120),
]


@pytest.mark.parametrize(("asked", "number"), STREAMS)
def test_streams_by_the_round_trip(asked: list[str], number: int) -> None:
    """One for each half of a millisecond of the longest, 4 to 512; queues have room for the windows of all of them."""
    asked = ["network=1gbit", "cluster.servers=4", "transport=bagua_net", *asked]
    cell = resolved(*asked, "transport.streams=auto")
    assert streams(cell.transport, longest_trip(cell)) == number
    assert shape_of(cell).connections == number * 3
    assert cell == Cell.from_json(cell.to_json())
    shape = shape_of(resolved(*asked, "transport.streams=2"))
    assert shape.connections == 2 * 3
    assert max(shape.rtt(a, b) for a, b in combinations(range(4), 2)) == pytest.approx(longest_trip(cell))


def test_no_other_transport_has_streams() -> None:
    """Advice compares transports with the same keys."""
    for name, number in (("gloo", 1), ("nccl", 1), ("nccl_bagua_net", 8)):
        cell = resolved("mode=simulate", f"transport={name}", "transport.streams=8")
        assert streams(cell.transport, 0.1) == number
    assert streams(resolved("mode=simulate", "transport=nccl_bagua_net", "transport.streams=auto").transport, 0.1) == 64


def test_the_transport_chooses_by_the_same_numbers() -> None:
    core = HOME / "bagua_bench" / "transport" / "cpp" / "core"
    tuning, wire = (core / "tuning.h").read_text(), (core / "wire.h").read_text()
    assert f"kFewestStreams = {network_shape.FEWEST_STREAMS};" in tuning
    assert f"kMostStreamPerSeconds = {network_shape.STREAM_PER_SECONDS * 1e3}e-3;" in tuning
    assert f"kMaxStreams = {network_shape.MOST_STREAMS};" in wire
    worker = (HOME / "tools" / "transport" / "worker.py").read_text()
    assert f"_MOST_STREAMS = {network_shape.MOST_STREAMS}  # cpp/core/wire.h" in worker
    assert f"most_streams = {network_shape.MOST_IN_NCCL};" in (core / "settings.h").read_text()
    assert f"kMinChunkBytes = {PART >> 10} << 10" in tuning
    algorithms = (core.parent / "collectives" / "algorithms.cpp").read_text()
    assert f"kTree = {TREE_BYTES['broadcast'] >> 10} << 10;" in algorithms
    assert f"kFewSteps = {FEW_BYTES >> 10} << 10;" in algorithms
    assert f"kFewSteps = {TREE_BYTES['reduce'] >> 10} << 10;" in algorithms
    assert "bytes <= kFewSteps) return reduce_along_a_tree" in algorithms


def test_a_quicker_run_has_as_many_streams() -> None:
    asked = ["mode=emulate", "network=1gbit", "network.latency=20ms", "transport=bagua_net", "transport.streams=auto"]
    assert scale_model(resolved(*asked)).transport.streams == "auto"
    assert scale_model(resolved(*asked, "compute.haste=4")).transport.streams == 80
