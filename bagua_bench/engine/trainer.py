"""The parts of a training step: one small interface for the engine and every peer system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.optim import Optimizer

from bagua_bench.engine.loss_scale import LossScale
from bagua_bench.engine.rounds import Rounds
from bagua_bench.results.result import Sending, Study


class Trainer(ABC):
    """One rank's side of data-parallel training. A step is: forward through `module`, backward of the loss, then
    `synchronize`, `optimize`, `finish_step`, in this order and on one thread."""

    module: nn.Module
    """The module to call for the forward pass."""
    model: nn.Module
    """The user's model."""
    optimizer: Optimizer
    gradients_done: Any = None
    """`stopwatch.stamp` of the last gradient, for systems that wait for communication inside the backward pass."""
    scale: LossScale | None = None
    """Set for float16: `backward` is then called on `scale.scaled(loss)`."""
    consensus: float = 0.0
    """Largest allowed distance between replicas, relative; 0: bit-equal."""
    trains: bool = True
    """False on a rank that only serves others: it takes no batches, and its replica of the model is none."""

    @property
    def rounds(self) -> Rounds | None:
        """The averaging rounds of a system that communicates in rounds beside its steps; None of all others."""
        return None

    @property
    def tuning(self) -> bool:
        """Whether this step is one in which settings are tried."""
        return False

    @property
    def study(self) -> Study | None:
        """What autotuning has tried; None of a system that was not asked to."""
        return None

    @property
    def sending(self) -> Sending | None:
        """How the engine cuts its model and sends it; None of a peer."""
        return None

    def no_sync(self) -> AbstractContextManager[None]:
        """Forward and backward inside this context only accumulate gradients."""
        return nullcontext()

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the communication that the optimizer step needs. Raises its errors."""

    @abstractmethod
    def optimize(self) -> None:
        """Take the optimizer step, unless gradients overflowed under `scale`, and clear the gradients."""

    def finish_step(self) -> None:
        """Do the communication that follows the optimizer step."""

    def paused(self) -> AbstractContextManager[None]:
        """No communication and no change of the weights inside this context (evaluation, checkpoint)."""
        return nullcontext()

    @abstractmethod
    def restart(self) -> None:
        """Forget all steps taken: the caller has restored the initial weights and optimizer state."""

    @abstractmethod
    def sent(self) -> dict[str, float]:
        """Bytes sent so far by this rank: `flat`, `intra` (inside a server), `inter` (between leaders)."""

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """End all communication and leave nothing behind on the model.

        Collective, unless this rank has `failed`: then it does not wait for others.
        """

    def _advance(self) -> None:
        """`optimize` of a trainer whose optimizer is torch's."""
        if self.scale is None or self.scale.accepts():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _unscale_own(self) -> None:
        """Undo the scale of the gradients as they are on this rank."""
        if self.scale is not None:
            self.scale.unscale([p.grad for p in self.model.parameters() if p.grad is not None])

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, failure: object, *details: object) -> None:
        self.close(failed=failure is not None)
