"""torchft itself, with every rank a replica of its own. Importing this needs the package torchft."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager
from datetime import timedelta

os.environ.setdefault("RUST_LOG", "warn")  # torchft reads it when it is imported; by default it tells of every quorum

import torch
import torchft
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim import SGD, Optimizer
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

from bagua_bench.comm import CommError, traffic
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine.stopwatch import stamp
from bagua_bench.peers.base import PeerTrainer, own_address


class _Manager(torchft.Manager):  # type: ignore[misc]
    """With errors in one line, of the kind that all systems here raise."""

    def wait_quorum(self) -> None:
        try:
            super().wait_quorum()
        except Exception as error:
            raise CommError(f"torchft: no quorum of all ranks: {str(error).strip().splitlines()[0]}") from None


class _TorchFTTrainer(PeerTrainer):
    """A manager on every rank, and the lighthouse, at which quorums are found, on rank 0; both end with the run.

    Here all ranks must take part in every step: one that is lost ends the run. torchft would go on without it, and no
    rank could tell from its throughput that others were missing.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, asynchronous: bool) -> None:
        self.module = self.model = model
        self.optimizer = optimizer
        for tensor in model.state_dict().values():
            comm.broadcast(tensor)  # instead of torchft's own copies, which go through HTTP
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._whole = traffic.all_reduce(sum(p.nbytes for p in self._trained), comm.size)
        address, port = own_address(), torch.zeros(1, dtype=torch.int64)
        self._lighthouse: LighthouseServer | None = None
        if comm.rank == 0:
            self._lighthouse = LighthouseServer(bind="[::]:0", min_replicas=comm.size)
            port[0] = int(self._lighthouse.address().rpartition(":")[2])
        comm.broadcast(port)
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        limit = timedelta(seconds=comm.timeout)
        self._group = torchft.ProcessGroupGloo(timeout=limit)
        self._manager = _Manager(
            pg=self._group,
            load_state_dict=lambda _: None,
            state_dict=dict,
            min_replica_size=comm.size,
            use_async_quorum=asynchronous,
            timeout=limit,
            quorum_timeout=limit,
            connect_timeout=limit,
            rank=0,
            world_size=1,
            store_addr=address,
            store_port=self._store.port,
            lighthouse_addr=f"http://{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{int(port)}",
            replica_id=f"rank{comm.rank}",
            hostname=address,
            init_sync=False,
        )
        self._comm = comm

    def _refused(self) -> CommError:
        """What to raise where ranks have not agreed to a step."""
        failure = self._manager.errored()
        reason = str(failure.original_exception).strip() if failure is not None else ""
        return CommError(f"torchft: {(reason or 'a rank has refused the step').splitlines()[0]}")

    def close(self, failed: bool = False) -> None:
        if not failed:
            self._comm.barrier()  # a manager that others still ask must not end
        self._manager.shutdown(wait=False)
        self._group.shutdown()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


class DDPTrainer(_TorchFTTrainer):
    """Each step has a quorum of its own, and ends with a vote on whether all have its gradients."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, asynchronous: bool, bucket_cap_mb: float
    ) -> None:
        super().__init__(model, optimizer, comm, asynchronous)
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in self._trained]
        self.module = self._ddp = torchft.DistributedDataParallel(self._manager, model, bucket_cap_mb=bucket_cap_mb)
        self._hooks.append(model.register_forward_pre_hook(self._forward_begins))
        self._asked = False

    def _gradient_ready(self, p: Tensor) -> None:
        self.gradients_done = stamp(p.device, self.gradients_done)

    def _forward_begins(self, *_: object) -> None:
        if torch.is_grad_enabled() and not self._asked:
            self._asked = True
            self._manager.start_quorum()

    def no_sync(self) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = self._ddp.no_sync()
        return found

    def synchronize(self) -> None:
        self._sent += self._whole
        if self._manager.errored() is not None:
            raise self._refused()
        self._unscale_own()

    def optimize(self) -> None:
        if not self._manager.should_commit():
            raise self._refused()
        self._asked = False
        self._advance()

    def close(self, failed: bool = False) -> None:
        for hook in self._hooks:
            hook.remove()
        super().close(failed)


class _Periodic(_TorchFTTrainer):
    """Communicates after every `sync_every`th step of the optimizer."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, sync_every: int, consensus: float
    ) -> None:
        super().__init__(model, optimizer, comm, asynchronous=False)
        self.consensus, self._sync_every, self._taken = consensus, sync_every, 0

    def synchronize(self) -> None:
        self._unscale_own()

    def finish_step(self) -> None:
        self._taken += 1
        if self._taken % self._sync_every == 0:
            agreed = self._manager.current_step()
            self._meet()
            self._sent += self._whole  # weights and their changes have as many bytes as gradients
            if self._manager.current_step() == agreed:
                raise self._refused()

    @abstractmethod
    def _meet(self) -> None:
        """Average; collective."""

    def restart(self) -> None:
        self._taken = 0


class LocalSGDTrainer(_Periodic):
    """torchft's `sync`, called after the optimizer's step instead of from within it, so that its time is told apart."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, comm: TorchComm, sync_every: int, consensus: float
    ) -> None:
        super().__init__(model, optimizer, comm, sync_every, consensus)
        self._local = LocalSGD(self._manager, model, optimizer, sync_every)

    def _meet(self) -> None:
        self._local.sync()


class DiLoCoTrainer(_Periodic):
    """The same, with an outer optimizer of its own."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        comm: TorchComm,
        sync_every: int,
        outer: tuple[float, float],
        consensus: float,
    ) -> None:
        super().__init__(model, optimizer, comm, sync_every, consensus)
        rate, momentum = outer
        self._outer = SGD(self._trained, lr=rate, momentum=momentum, nesterov=momentum > 0)
        self._diloco = DiLoCo(self._manager, [self.model], self.optimizer, self._outer, sync_every)

    def _meet(self) -> None:
        self._manager.start_quorum()
        [fragment] = self._diloco._fragments
        fragment.prepare_sync()
        fragment.perform_sync()

    def restart(self) -> None:
        super().restart()
        [fragment] = self._diloco._fragments
        fragment.save_parameters()
        self._outer.state.clear()
