"""Puts model and optimizer back to their start after warm-up, without a second copy of the weights in memory."""

from __future__ import annotations

import tempfile

import torch
from torch import nn
from torch.optim import Optimizer


class Snapshot:
    """The model's state at construction, in an unnamed file that ends with `restore` or with the process."""

    def __init__(self, model: nn.Module) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `restore` closes it
        torch.save(model.state_dict(), self._file)
        self._file.flush()

    def restore(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Overwrite the state in place and zero all optimizer state, which is how SGD and Adam start."""
        start = torch.load(f"/proc/self/fd/{self._file.fileno()}", mmap=True, weights_only=True)
        for name, tensor in model.state_dict().items():
            tensor.copy_(start[name])
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        del start
        self._file.close()
