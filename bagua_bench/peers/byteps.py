"""A parameter server with BytePS's schedule. Only the schedule is here, for `mode=simulate`."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm, traffic
from bagua_bench.configuration import units
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Collective, Item, Program, Submit
from bagua_bench.peers import schedule
from bagua_bench.peers.base import Peer


class BytePS(Peer):
    """Gradients are reduced inside a server, then pushed and pulled in partitions to servers beside the workers.

    The pipeline of partitions hides the latency of all but the last. Source: Jiang et al. 2020, without extra CPU
    machines.
    """

    def __init__(self, partition: str = "4MiB") -> None:
        self._partition = int(units.parse("algo.partition", partition, units.BYTES))
        if self._partition < 1:
            raise ValueError(f"algo.partition={partition}: must be at least 1B")

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        raise ValueError("algo=byteps: BytePS itself runs on no current torch; allowed: mode=simulate")

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        nbytes, ranks = schedule.sizes(layers), servers * per_server

        def sends(position: int) -> list[Item]:
            full, rest = divmod(nbytes[position], self._partition)
            parts = [self._partition] * full + [rest] * (rest > 0)
            return [Submit(tuple(Collective("push_pull", part, "flat") for part in parts))]

        between = 2 * (servers - 1) / servers * sum(nbytes) / per_server
        sent = between if servers > 1 else traffic.all_reduce(sum(nbytes), ranks)
        return schedule.program(layers, ranks, steps, sends, sent)
