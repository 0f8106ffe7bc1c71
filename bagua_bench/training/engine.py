"""The engine: runs an algorithm's communication beside a model's forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Op, When
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.training.buckets import make_buckets
from bagua_bench.training.free import FreeLoop
from bagua_bench.training.lanes import Lane
from bagua_bench.training.order import InOrder
from bagua_bench.training.streams import lane_for
from bagua_bench.training.trainer import Trainer

MIB = 2**20


class Engine(Trainer):
    """Trains `model` with `algorithm` over `comm`: construct, then forward, backward, `step()`; `close()` at the end.

    Construction is collective: it broadcasts parameters and buffers from rank 0, moves the parameters into flat
    buckets and installs hooks. All ranks must build the same model. A failed collective is raised, as `CommError`,
    by the next `synchronize()` or `step()`.

    comm: who takes part; None: all ranks of torch.distributed's default group.
    bucket_size: bytes at which a bucket closes; 0 makes one bucket per tensor.
    overlap: run communication beside the backward (or forward) pass; off: after it.
    find_unused_parameters: let parameters go without a gradient in a step; off: an error names them.
    lane, free: what runs communication beside computation, in steps (None: a thread, or on a GPU a stream) and in
    averaging rounds.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        algorithm: Algorithm,
        comm: CountedComm | None = None,
        *,
        bucket_size: int = 10 * MIB,
        overlap: bool = True,
        find_unused_parameters: bool = False,
        lane: Callable[[], Lane] | None = None,
        free: Callable[..., Any] = FreeLoop,
    ) -> None:
        self.module = self.model = model
        self.optimizer = algorithm.optimizer(model.parameters(), optimizer)
        self.algorithm = algorithm
        self.comm = comm = TorchComm.default() if comm is None else comm
        self.consensus = algorithm.consensus
        self._overlap, self._find_unused = overlap, find_unused_parameters
        size = 2**63 if algorithm.one_bucket else bucket_size
        self.buckets = make_buckets(model.parameters(), size, comm.size, algorithm.gradients)
        self._broadcast_start()
        self._names = {p: name for name, p in model.named_parameters()}
        self._home: dict[Parameter, tuple[int, Tensor | None]] = {}
        for index, bucket in enumerate(self.buckets):
            views = bucket.views(bucket.grad) if algorithm.gradients else [None] * len(bucket.params)
            self._home.update({p: (index, view) for p, view in zip(bucket.params, views, strict=True)})
        self._order = InOrder([bucket.params for bucket in self.buckets], self._launch)
        self._lane = lane_for(self.buckets[0].weight.device) if lane is None else lane()
        self._make_free = free
        self._free: FreeLoop | None = None
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in self._home]
        self._hooks.append(model.register_forward_pre_hook(self._forward_begins))
        self._accumulating = self._synchronized = self._is_paused = False
        self.restart()

    # -- the training step ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Finish the step after the backward pass: communication, optimizer, gradients cleared."""
        self.synchronize()
        self.optimize()
        self.publish()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def synchronize(self) -> None:
        if self._synchronized:
            return
        if self._free is not None:
            self._free.leave()
            self._free.check()
        if self._when is When.BACKWARD:
            self._resolve_missing()
        self._run_deferred()
        if self._find_unused and self._when is When.BACKWARD:
            self._forget_globally_unused()
        self._finish(self._when in (When.BACKWARD, When.FORWARD))
        self._judge_gradients()
        self._synchronized = True

    def optimize(self) -> None:
        with self._free.mutate if self._free is not None else nullcontext():
            self._advance()

    def publish(self) -> None:
        if self._when is When.STEP:
            self._launch_all()
            self._run_deferred()
            self._finish(True)
        self._begin(self.steps + 1)

    # -- life cycle -------------------------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        if self._free is not None:
            self._free.stop()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
        self._run_free()

    def restart(self) -> None:
        for bucket in self.buckets:
            bucket.state.clear()
        self.algorithm.start(self.buckets, self.comm, self.optimizer)
        self._begin(0)

    def state_dict(self) -> dict[str, Any]:
        """Steps taken and the algorithm's per-bucket state; save it beside the model's and the optimizer's."""
        return {"steps": self.steps, "buckets": {bucket.name: bucket.state for bucket in self.buckets}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`, after model and optimizer were loaded. ValueError if the buckets differ."""
        names = [bucket.name for bucket in self.buckets]
        if names != list(state["buckets"]):
            raise ValueError(f"buckets: the checkpoint has {list(state['buckets'])}, the engine {names}")
        self.restart()
        for bucket in self.buckets:
            for key, value in state["buckets"][bucket.name].items():
                bucket.state[key].copy_(value)
        self._begin(state["steps"])

    def sent(self) -> dict[str, float]:
        return self.comm.sent

    def close(self, failed: bool = False) -> None:
        for hook in self._hooks:
            hook.remove()
        self._lane.close()
        if self._free is not None:
            self._free.abandon() if failed else self._free.stop()

    def _broadcast_start(self) -> None:
        """Give every rank rank 0's parameters and buffers."""
        frozen = [p.detach() for p in self.model.parameters() if not p.requires_grad]
        for tensor in [*(bucket.weight for bucket in self.buckets), *frozen, *self.model.buffers()]:
            data = tensor.contiguous()
            self.comm.broadcast(data, 0)
            tensor.copy_(data)

    # -- hooks ------------------------------------------------------------------------------------------------

    def _begin(self, steps: int) -> None:
        """Be between steps, with `steps` taken."""
        self.steps = steps
        self._when = self.algorithm.moment(steps + 1)
        self._order.reset()
        self._deferred: list[int] = []
        self._in_forward = self._synchronized = False
        self._run_free()

    def _run_free(self) -> None:
        """Have the averaging loop running where it should be."""
        if self._when is not When.FREE or self._is_paused:
            return
        if self._free is None:
            device = self.buckets[0].weight.device
            work = (self._snapshot, self._exchange, self._apply)
            self._free = self._make_free(self.comm, device, self.algorithm.pause, *work)
        self._free.start()

    def _forward_begins(self, module: nn.Module, inputs: object) -> None:
        if self._in_forward or not (module.training and torch.is_grad_enabled()):
            return
        self._in_forward = True
        if self._when is When.FORWARD:
            self._launch_all()
        if self._free is not None:
            self._free.enter()

    def _gradient_ready(self, p: Tensor) -> None:
        assert isinstance(p, Parameter) and p.grad is not None
        if p.grad.is_sparse:
            raise ValueError(f"{self._names[p]}: sparse gradients are not supported")
        index, view = self._home[p]
        if view is not None and p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad)
            p.grad = view
        if self._when is When.BACKWARD and not self._accumulating:
            self._order.ready(index, p)

    # -- communication ----------------------------------------------------------------------------------------

    def _launch(self, index: int) -> None:
        if self._overlap:
            self._submit(index)
        else:
            self._deferred.append(index)

    def _launch_all(self) -> None:
        for index in range(len(self.buckets)):
            self._launch(index)

    def _submit(self, index: int) -> None:
        self._lane.submit(partial(self._communicate, self.buckets[index], self.steps + 1))

    def _communicate(self, bucket: Bucket, step: int) -> None:
        if self.scale is not None and self._when is When.BACKWARD:
            self.scale.unscale([bucket.grad])
        self.algorithm.prepare(bucket, step)
        self.algorithm.communicate(bucket, self.comm, step)

    def _run_deferred(self) -> None:
        for index in self._deferred:
            self._submit(index)
        self._deferred = []
        self._lane.wait()

    def _finish(self, communicated: bool) -> None:
        if communicated:
            for bucket in self.buckets:
                self.algorithm.finish(bucket, self.steps + 1)

    def _judge_gradients(self) -> None:
        """Where gradients are communicated, an overflow on one rank is one on all; else a rank decides alone.

        One that leaves out a step of its own is no further from the others than one whose gradient was zero.
        """
        if self.scale is None:
            return
        if self._when is When.BACKWARD:
            self._lane.submit(partial(self.comm.all_reduce, self.scale.overflow, Op.MAX))
            self._lane.wait()
        else:
            self._unscale_own()

    def _resolve_missing(self) -> None:
        """Let parameters without a gradient take part with zeros, or say which they are."""
        missing = self._order.missing()
        if missing and not self._find_unused:
            names = ", ".join(sorted(self._names[p] for _, p in missing if isinstance(p, Parameter))[:5])
            raise RuntimeError(
                f"{len(missing)} parameters got no gradient in this step: {names}; "
                "pass find_unused_parameters=True if that is intended"
            )
        self._unused = []
        for index, p in missing:
            assert isinstance(p, Parameter)
            view = self._home[p][1]
            assert view is not None
            if p.grad is None:
                self._unused.append(p)
                p.grad = view.zero_()
            self._order.ready(index, p)

    def _forget_globally_unused(self) -> None:
        """Take the zero gradient back from parameters that no rank used: the optimizer shall skip them."""
        params, unused = list(self._home), set(self._unused)
        used = torch.tensor([p not in unused for p in params], dtype=torch.uint8, device=params[0].device)
        self._lane.submit(partial(self.comm.all_reduce, used, Op.MAX))
        self._lane.wait()
        for p, anywhere in zip(params, used.tolist(), strict=True):
            if not anywhere:
                p.grad = None

    # -- the averaging loop -----------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        for bucket in self.buckets:
            self.algorithm.prepare(bucket, self.steps + 1)

    def _exchange(self) -> None:
        for bucket in self.buckets:
            self.algorithm.communicate(bucket, self.comm, self.steps + 1)

    def _apply(self) -> None:
        for bucket in self.buckets:
            self.algorithm.finish(bucket, self.steps + 1)
