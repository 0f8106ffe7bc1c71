"""Horovod: tensor fusion in cycles. Its schedule for `mode=simulate`, and its settings where it runs itself."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration import units
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Fusion, Program, Ready
from bagua_bench.peers import schedule
from bagua_bench.peers.base import Peer


class Horovod(Peer):
    """Every `cycle_time` the workers agree on the gradients that are ready and all-reduce them in fused messages.

    Defaults are those of Horovod in 2021, when the published figures were made; 0.28.1 has 1 ms and 128 MiB.
    compression: fp16: gradients travel as float16. autotune: Horovod's own, of both settings. Neither can be simulated.
    Source: Sergeev and Del Balso 2018.
    """

    package = "horovod"
    """What must be installed to run it."""
    install = "bagua-bench peers build horovod"
    """How to install that."""
    once_per_process = True
    """Whether processes that have run it can run it no second time."""
    simulated_with: ClassVar = {"compression": "none", "autotune": False}
    """Values of options without which it cannot be simulated."""

    def __init__(
        self,
        cycle_time: str = "5ms",
        fusion_threshold: str = "64MiB",
        compression: Literal["none", "fp16"] = "none",
        autotune: bool = False,
    ) -> None:
        cycle = units.parse("algo.cycle_time", cycle_time, units.SECONDS)
        self._fusion = Fusion(cycle, int(units.parse("algo.fusion_threshold", fusion_threshold, units.BYTES)))
        self._compression, self._autotune = compression, autotune

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        from bagua_bench.peers.horovod_run import HorovodTrainer  # needs what may not be installed

        assert isinstance(comm, TorchComm), "Horovod connects the ranks of a torch process group"
        settings = {  # Horovod does not search for what it is given
            "HOROVOD_AUTOTUNE": str(int(self._autotune)),
            "HOROVOD_CYCLE_TIME": None if self._autotune else f"{1e3 * self._fusion.cycle:.10g}",
            "HOROVOD_FUSION_THRESHOLD": None if self._autotune else str(self._fusion.threshold),
        }
        return HorovodTrainer(model, optimizer, comm, settings, self._compression)

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        nbytes, ranks = schedule.sizes(layers), servers * per_server
        sent = schedule.all_reduced(layers, ranks)
        return schedule.program(layers, ranks, steps, lambda i: [Ready(nbytes[i])], sent, self._fusion)
