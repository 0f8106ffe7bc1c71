"""torchft: data parallelism whose replicas agree before every step on who takes part (a quorum)."""

from __future__ import annotations

from typing import Annotated

from torch import nn
from torch.optim import Optimizer

from algorithms.base import Above, Least
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.trainer import Trainer
from bagua_bench.peers.base import Peer


class TorchFT(Peer):
    """`torchft.DistributedDataParallel`: the mean of all gradients, in buckets.

    use_async_quorum: agree on the members while the forward pass goes on. Source: github.com/meta-pytorch/torchft, 0.2.
    """

    package = "torchft"
    install = "pip install 'bagua-bench[torchft]'"

    def __init__(self, bucket_cap_mb: float = 25, use_async_quorum: bool = True) -> None:
        self._cap, self._asynchronous = bucket_cap_mb, use_async_quorum

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        from bagua_bench.peers import torchft_run  # needs what may not be installed

        assert isinstance(comm, TorchComm), "torchft connects the ranks of a torch process group"
        return torchft_run.DDPTrainer(model, optimizer, comm, self._asynchronous, self._cap)


class TorchFTLocalSGD(Peer):
    """`torchft.local_sgd.LocalSGD`: every rank trains alone; every `sync_every` steps weights become their mean.

    Source: Stich, ICLR 2019.
    """

    package = "torchft"
    install = "pip install 'bagua-bench[torchft]'"
    consensus = 0.75

    def __init__(self, sync_every: Annotated[int, Least(1)] = 20) -> None:
        self._sync_every = sync_every

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        from bagua_bench.peers import torchft_run

        assert isinstance(comm, TorchComm), "torchft connects the ranks of a torch process group"
        return torchft_run.LocalSGDTrainer(model, optimizer, comm, self._sync_every, self.consensus)


class TorchFTDiLoCo(Peer):
    """`torchft.local_sgd.DiLoCo`: as LocalSGD, but the mean change is the gradient of an outer optimizer's step.

    That one is SGD with Nesterov's momentum. Source: Douillard et al. 2023.
    """

    package = "torchft"
    install = "pip install 'bagua-bench[torchft]'"
    consensus = 0.75

    def __init__(
        self,
        sync_every: Annotated[int, Least(1)] = 20,
        outer_lr: Annotated[float, Above(0)] = 0.7,
        outer_momentum: Annotated[float, Least(0)] = 0.9,
    ) -> None:
        self._sync_every, self._lr, self._momentum = sync_every, outer_lr, outer_momentum

    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        from bagua_bench.peers import torchft_run

        assert isinstance(comm, TorchComm), "torchft connects the ranks of a torch process group"
        outer = (self._lr, self._momentum)
        return torchft_run.DiLoCoTrainer(model, optimizer, comm, self._sync_every, outer, self.consensus)
