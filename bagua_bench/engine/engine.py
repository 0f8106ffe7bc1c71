"""The engine: runs an algorithm's communication beside a model's forward and backward passes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from algorithms.base import Algorithm, When
from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.engine import hooks, state
from bagua_bench.engine.agreement import agree, description
from bagua_bench.engine.asynchronous import AveragingLoop
from bagua_bench.engine.autotune import Autotune, Tuner
from bagua_bench.engine.buckets import make_buckets
from bagua_bench.engine.buffers import Buffers
from bagua_bench.engine.gradients import Gradients
from bagua_bench.engine.layout import refuse_unfit
from bagua_bench.engine.plan import Opener, Plan
from bagua_bench.engine.rounds import Rounds
from bagua_bench.engine.saved import Saved
from bagua_bench.engine.schedule import Perform, Schedule, perform
from bagua_bench.engine.several import Several
from bagua_bench.engine.sizing import LEAST
from bagua_bench.engine.streams import open_channels
from bagua_bench.engine.watch import Watch, release, take
from bagua_bench.fused.memory import is_dense
from bagua_bench.fused.optimizer import replaced, unfused
from bagua_bench.results.result import Sending, Study


class Engine(Saved):
    """Trains `model` with `algorithm` over `comm`: construct, then forward, backward, `step()`; `close()` at the end.

    Construction is collective: it compares the ranks' models, broadcasts parameters and buffers from rank 0, moves
    the parameters into flat buckets and installs hooks. When `backward()` returns, `.grad` is what the optimizer will
    use: the averaged gradient, or, where the algorithm communicates no gradients, this rank's own. A failed collective
    is raised, as `CommError`, by the `backward()` or `step()` that needs it.

    optimizer: of the model's parameters, `fuse`d or not; or several, whose steps are taken one after another.
    comm: the ranks that take part; None: all ranks of torch.distributed's default group.
    bucket_size: bytes at which a bucket closes; 0 makes one bucket per tensor. None: chosen by what collectives cost,
    at least `least_bucket` (engine/sizing.py).
    channels: how many buckets are under way at a time, each over a communicator of its own. None: four on the CPU.
    overlap: run communication beside the backward (or forward) pass; off: after it.
    find_unused_parameters: let parameters go without a gradient in a step; off: an error names them.
    broadcast_buffers: keep buffers alike: rank 0's, or, where replicas differ, the mean of floating-point ones.
    max_grad_norm: clip gradients to this norm before they are used: the averaged ones, or this rank's own where the
    algorithm uses these; `grad_norm` is the norm before clipping.
    autotune: tune bucket size, channels and hierarchy in the first steps, then train on with the best.
    lanes, averaging: make the objects that run communication beside computation, in steps and in averaging rounds.
    perform: calls a piece of the algorithm with a bucket and whatever else it needs, on any thread.
    shares_cores: on the CPU, communication takes time from computing; off where computing is emulated.

    ValueError, one line, for a model, an optimizer or a number of ranks that does not fit, and where ranks differ.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        algorithm: Algorithm,
        comm: CountedComm | None = None,
        *,
        bucket_size: int | None = None,
        least_bucket: int = LEAST,
        channels: int | None = None,
        overlap: bool = True,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        max_grad_norm: float | None = None,
        autotune: Autotune | None = None,
        lanes: Opener = open_channels,
        averaging: Callable[..., Any] = AveragingLoop,
        perform: Perform = perform,
        shares_cores: bool = True,
    ) -> None:
        super().__init__(find_unused_parameters, max_grad_norm, averaging)
        optimizers = hooks.check_optimizers(optimizer)
        if not isinstance(algorithm, Algorithm):
            raise ValueError(f"algorithm={algorithm}: expected an algorithm, such as GradientAllReduce()")
        self.module = self.model = model
        self.algorithm, self.consensus = algorithm, algorithm.consensus
        self.optimizer = _chosen(optimizers, algorithm)
        try:
            self.comm = TorchComm.default() if comm is None else comm
        except BaseException:
            algorithm.stop(unfused(self.optimizer))
            raise
        self._owns_comm = comm is None
        self.plan = Plan(algorithm, self.comm, bucket_size, channels, least_bucket, lanes, shares_cores)
        self._overlap, self._broadcasts, self._perform = overlap, broadcast_buffers, perform
        self._forward_hook: RemovableHandle | None = None
        self._tuner: Tuner | None = None
        self._guards: list[RemovableHandle] = []
        try:
            self._attach()
            self._start()
            if autotune is not None:
                self._tuner = Tuner(self, autotune, self._names.values(), lambda work: self._schedule.run(work))
        except BaseException:
            self.close(failed=True)
            raise
        for each in {*optimizers, self.optimizer}:
            self._guards.append(hooks.forbid_steps(each, lambda: self._stepping or self._synchronized))

    # -- life cycle -------------------------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._refuse_closed()
        if self._averaging is not None:
            if self._in_forward and not self._synchronized:
                raise RuntimeError("paused(): between a training forward and step(), where averages cannot be applied")
            self._averaging.stop()
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before
        self._run_averaging()

    def restart(self) -> None:
        """Forget all steps taken, and begin anew from rank 0's weights and buffers; collective."""
        with self.paused():
            self._schedule.drain()
            self._watch.bring_home()
            self._broadcast_everything()
            self._start()

    def rebuild(self) -> None:
        """Make the buckets anew from the parameters that the model has now; collective, between two steps.

        Call it when parameters thawed, froze, or changed type or memory format. State that belongs to parameters is
        kept. Parameters that thaw or freeze become rank 0's.
        """
        self._refuse_closed()
        self._schedule.drain()
        self._in_forward = False
        with self.paused():
            saved, trained = state.collect(self.buckets, self._names), set(self._gradients.params)
            pending = self._schedule.pending
            self._detach()
            gc.collect()  # old buckets are part of cycles, which the collector would leave for long: they are few
            self._attach(trained)
            self.algorithm.start(self.buckets, self.comm, unfused(self.optimizer))
            state.restore(self.buckets, self._names, saved)
            self._schedule.resume(pending)
            self._averaging = None
            self._begin(self.steps)

    @property
    def rounds(self) -> Rounds | None:
        return self._schedule.rounds if When.ASYNC in self._schedule.moments else None

    @property
    def tuning(self) -> bool:
        return self._tuner is not None and not self._tuner.done

    @property
    def study(self) -> Study | None:
        return None if self._tuner is None else self._tuner.study

    @property
    def sending(self) -> Sending:
        return Sending(self.plan.bucket_size, len(self.buckets), self.plan.number)

    def sent(self) -> dict[str, float]:
        return self.comm.sent

    def close(self, failed: bool = False) -> None:
        self._is_closed = True
        self._detach()
        for guard in self._guards:
            guard.remove()
        self.plan.close()
        if self._averaging is not None:
            self._averaging.abandon() if failed else self._averaging.stop()
        self.algorithm.stop(unfused(self.optimizer))
        if self._owns_comm:
            self.comm.abandon() if failed else self.comm.close()

    # -- autotuning -------------------------------------------------------------------------------------------

    def finish_step(self) -> None:
        super().finish_step()
        if self._tuner is not None:
            self._tuner.step_ends()

    def _forward_begins(self) -> None:
        if self._tuner is not None and not self._in_forward:
            self._tuner.step_begins()
        super()._forward_begins()

    def _gradient_ready(self, p: Parameter) -> None:
        if self._tuner is not None:
            self._tuner.ready(self._names[p])
        super()._gradient_ready(p)

    # -- buckets and hooks ------------------------------------------------------------------------------------

    def _attach(self, trained: Collection[Parameter] = ()) -> None:
        """Put the parameters into buckets. All become rank 0's, or only those that join or leave the `trained` ones."""
        model = self.model
        refuse_unfit(model, self.optimizer)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        device = next(iter(named.values())).device
        where = torch.device("cpu") if device.type == "meta" else device
        agree(description(model, self.algorithm.described(), *self._options()), self.comm, where)
        channels, ordered = self.plan.channels(device), self.plan.ordered(list(named.items()))
        size = self.plan.size(ordered)
        take(named, self)
        self.buckets = make_buckets(ordered, size, self.comm.size, self.algorithm.gradients, self.algorithm)
        self._names = {p: name for name, p in model.named_parameters()}
        if trained:
            self._broadcast(p.detach() for p in self._names if (p in trained) != p.requires_grad)
        else:
            self._broadcast_everything()
        self._watch = Watch(model, self.buckets)
        self._gradients = Gradients(self.buckets, self._names, self.algorithm.gradients)
        self._schedule = Schedule(
            self.algorithm,
            self.comm,
            channels,
            self.buckets,
            Buffers(model, average=self.consensus > 0) if self._broadcasts else None,
            overlap=self._overlap,
            clips=self._max_norm is not None,
            unscale=self._unscale,
            perform=self._perform,
        )
        self._hook_gradients()
        self._forward_hook = model.register_forward_pre_hook(hooks.ForwardHook(self._forward_begins))

    def _options(self) -> list[str]:
        """Options that all ranks must have in common."""
        return [
            *self.plan.described(),
            f"find_unused_parameters={self._find_unused}",
            f"broadcast_buffers={self._broadcasts}",
            f"max_grad_norm={self._max_norm}",
        ]

    def _detach(self) -> None:
        self._gradient_hooks.remove()
        if self._forward_hook is not None:
            self._forward_hook.remove()
        release(self)

    def _start(self) -> None:
        """Go back before the first step; weights are equal on all ranks."""
        self._schedule.forget()
        for bucket in self.buckets:
            bucket.state.clear()
            bucket.each.clear()
        self.algorithm.start(self.buckets, self.comm, unfused(self.optimizer))
        self._begin(0)

    def _broadcast_everything(self) -> None:
        frozen = [p.detach() for p in self.model.parameters() if not p.requires_grad]
        self._broadcast([*(bucket.weight for bucket in self.buckets), *frozen, *self.model.buffers()])

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank rank 0's, as bytes: not every backend moves every type."""
        for tensor in tensors:
            if tensor.numel() and tensor.layout is torch.strided and is_dense(tensor):
                data = tensor.contiguous()
                self.comm.broadcast(data.view(-1).view(torch.uint8), 0)
                tensor.copy_(data)


def _chosen(optimizers: Sequence[Optimizer], algorithm: Algorithm) -> Optimizer:
    """The optimizer to train with. ValueError where the algorithm would take the place of several."""
    given = optimizers[0] if len(optimizers) == 1 else Several(optimizers)
    chosen = replaced(given, algorithm.optimizer)
    if len(optimizers) > 1 and chosen is not given:
        raise ValueError(f"optimizer: {len(optimizers)} of them; {type(algorithm).__name__} takes the place of one")
    return chosen
