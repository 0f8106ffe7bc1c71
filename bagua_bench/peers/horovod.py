"""Horovod: tensor fusion in cycles. Only its schedule is here, for `mode=simulate`."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm
from bagua_bench.configuration import units
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Fusion, Program, Ready
from bagua_bench.peers import schedule
from bagua_bench.peers.base import Peer


class Horovod(Peer):
    """Every `cycle_time` the workers agree on the gradients that are ready and all-reduce them in fused messages.

    Defaults are those of Horovod in 2021. Source: Sergeev and Del Balso 2018.
    """

    def __init__(self, cycle_time: str = "5ms", fusion_threshold: str = "64MiB") -> None:
        cycle = units.parse("algo.cycle_time", cycle_time, units.SECONDS)
        self._fusion = Fusion(cycle, int(units.parse("algo.fusion_threshold", fusion_threshold, units.BYTES)))

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        raise ValueError("algo=horovod: Horovod itself is not part of the suite; allowed: mode=simulate")

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        nbytes, ranks = schedule.sizes(layers), servers * per_server
        sent = schedule.all_reduced(layers, ranks)
        return schedule.program(layers, ranks, steps, lambda i: [Ready(nbytes[i])], sent, self._fusion)
