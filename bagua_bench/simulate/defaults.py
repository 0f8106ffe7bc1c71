"""What the engine would choose where a configuration leaves the bucket size and the channels to it. No torch import."""

from __future__ import annotations

from dataclasses import replace

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.engine import sizing
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.program import Collective
from bagua_bench.simulate import bagua_net
from bagua_bench.simulate.cluster import Cluster
from bagua_bench.simulate.costs import seconds, wire

_ELEMENT = 4  # bytes of a float32


def settled(cell: Cell, cluster: Cluster) -> Cell:
    """The cell, already a scale model, with a bucket size and a number of channels."""
    run, declared = cell.run, facts.algorithm(cell.algo)
    channels = run.channels or (1 if declared.peer else sizing.channels(on_gpu=cell.transport.backend == "nccl"))
    size = run.bucket_size
    if size is None:
        size = 0 if declared.peer or declared.buckets else _bucket_size(cell, cluster, channels)
    return replace(cell, run=replace(run, bucket_size=size, channels=channels))


def _bucket_size(cell: Cell, cluster: Cluster, channels: int) -> int:
    model, least = _ELEMENT * layers_of(cell.task, cell.shrink).elements, int(sizing.LEAST / cell.shrink)
    if cluster.layout.ranks == 1 or model <= least:
        return least

    def time_of(nbytes: int, number: int) -> float:
        travels = bagua_net.summed(nbytes, _ELEMENT, cell.transport.wire)
        call = Collective("all_reduce", travels, "flat", packs=0 if travels == nbytes else nbytes)
        return seconds(call, cluster) + (number - 1) * seconds(replace(call, packs=0), wire(cluster))

    share = facts.algorithm(cell.algo).line_share
    return sizing.bucket_size(model, channels, sizing.measure(time_of, channels, model), least, share)
