"""The ranks that train together until one of them is lost or another one comes."""

from __future__ import annotations

import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.optim import Optimizer

from algorithms.base import Op
from bagua_bench.comm.torch_groups import TorchComm, errors, gathered, init_default
from bagua_bench.elastic.members import Meeting, Members


class Company:
    """The ranks that a meeting has decided on: torch.distributed's default group, over gloo, and `comm`; collective.

    A context. If it is left with an error, such as `Changed` or `CommError`, it waits for nobody: calls of other ranks
    that wait for this one fail, and theirs in turn. Those who are left then meet again.

    timeout: seconds after which a call fails that waits for a rank which is gone without a word.
    """

    def __init__(self, members: Members, meeting: Meeting, backend: str = "gloo", timeout: float = 60.0) -> None:
        store = PrefixStore(f"company-{meeting.number}", members.store)
        init_default(store, meeting.rank, meeting.size, timeout)
        try:
            self.comm = TorchComm.create(backend, timeout)
        except BaseException:
            dist.destroy_process_group()
            raise

    def __enter__(self) -> Company:
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        _let_go(failure)
        try:
            if failure is None:
                self.comm.close()
            else:
                self.comm.abandon()
        finally:
            dist.destroy_process_group()

    def even_out(self, model: nn.Module, optimizer: Optimizer, trained: bool) -> None:
        """Give all ranks one model before an engine is made: the mean of those that have `trained`; collective.

        What has no mean (integers) is that of the first of them, whose optimizer state goes to those that have not.
        Gradients are dropped: they may be of a step that failed. Nothing happens to models that nobody has trained.
        """
        optimizer.zero_grad(set_to_none=True)
        flags = gathered(trained)
        if not any(flags):
            return
        first = flags.index(True)
        for tensor in (*model.parameters(), *model.buffers()):
            self._mean(tensor.detach(), sum(flags), trained, first)
        for rank in (rank for rank, knows in enumerate(flags) if not knows):
            if self.comm.rank == first:
                with errors("send_object_list"):
                    dist.send_object_list([optimizer.state_dict()], dst=rank)
            elif self.comm.rank == rank:
                received: list[Any] = [None]
                with errors("recv_object_list"):
                    dist.recv_object_list(received, src=first)
                optimizer.load_state_dict(received[0])

    def _mean(self, tensor: Tensor, number: int, trained: bool, first: int) -> None:
        if not tensor.is_floating_point():
            flat = tensor.contiguous()
            self.comm.broadcast(flat.view(-1).view(torch.uint8), first)  # not every backend moves every type
            tensor.copy_(flat)
            return
        total = tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True).contiguous()
        self.comm.all_reduce(total.mul_(float(trained)).div_(number), Op.SUM)
        tensor.copy_(total)


def _let_go(error: BaseException | None) -> None:
    """Drop what the calls that failed have worked with: groups among it, whose connections others wait on."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
