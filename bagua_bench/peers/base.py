"""The interface of a peer system."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from typing import Any

from torch import nn
from torch.optim import Optimizer

from bagua_bench.comm import CountedComm
from bagua_bench.engine.trainer import Trainer
from bagua_bench.machine.layers import Layers
from bagua_bench.machine.program import Program


class Peer(ABC):
    """Another data-parallel training system; constructor arguments are its options."""

    @abstractmethod
    def attach(self, model: nn.Module, optimizer: Optimizer, comm: CountedComm) -> Trainer:
        """Wrap model and optimizer; collective over `comm`."""

    def program(self, layers: Layers, servers: int, per_server: int, steps: int) -> Program:
        """The schedule of `steps` steps, for the simulator. ValueError if the suite has none (`about.modes`)."""
        raise ValueError(f"{type(self).__name__}: has no schedule for mode=simulate")


class PeerTrainer(Trainer):
    """A peer's side of training, with what is the same for most: the step is the optimizer's, all bytes go among all
    ranks, and nothing has to be forgotten when training starts over."""

    _sent = 0.0
    """Bytes that this rank has sent so far."""

    def optimize(self) -> None:
        self._advance()

    def restart(self) -> None:
        pass

    def sent(self) -> dict[str, float]:
        return {"flat": self._sent, "intra": 0.0, "inter": 0.0}


def own_address() -> str:
    """This server's address on the network over which ranks communicate."""
    import psutil  # not needed by the suite's own algorithms, nor installed wherever they run

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    found: list[Any] = psutil.net_if_addrs()[interface]
    return next(str(one.address) for one in found if one.family == socket.AF_INET)
