"""hivemind: strangers average their models in groups that find each other through a distributed hash table."""

from __future__ import annotations

from typing import Annotated

from torch import nn
from torch.optim import Optimizer

from algorithms.base import Least
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.configuration import units
from bagua_bench.engine.trainer import Trainer
from bagua_bench.peers.base import Peer


class Hivemind(Peer):
    """`hivemind.DecentralizedAverager`: every rank trains alone; every `sync_every` steps weights become their mean.

    matchmaking_time: how long peers look for others before a round (`min_matchmaking_time`). Sources: Ryabinin et al.,
    NeurIPS 2021; github.com/learning-at-home/hivemind, 1.1.
    """

    package = "hivemind"
    install = "pip install 'bagua-bench[hivemind]'"
    consensus = 0.75

    def __init__(self, sync_every: Annotated[int, Least(1)] = 20, matchmaking_time: str = "5s") -> None:
        self._sync_every = sync_every
        self._looking = units.parse("algo.matchmaking_time", matchmaking_time, units.SECONDS)
        if not self._looking > 0:
            raise ValueError(f"algo.matchmaking_time={matchmaking_time}: must be more than 0")

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        from bagua_bench.peers import hivemind_run  # needs what may not be installed

        assert isinstance(comm, TorchComm), "hivemind's peers are the ranks of a torch process group"
        return hivemind_run.HivemindTrainer(model, optimizer, comm, self._sync_every, self._looking, self.consensus)
