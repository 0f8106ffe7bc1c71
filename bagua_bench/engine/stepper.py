"""The training step of the engine: forward, backward and `step()`, for every moment of communication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Bucket, Op, When
from bagua_bench.comm import CountedComm
from bagua_bench.engine.asynchronous import AveragingLoop
from bagua_bench.engine.gradients import Gradients
from bagua_bench.engine.hooks import BackwardEnd, GradientHooks
from bagua_bench.engine.order import TWICE
from bagua_bench.engine.schedule import Schedule
from bagua_bench.engine.stopwatch import stamp
from bagua_bench.engine.trainer import Trainer
from bagua_bench.engine.uneven import join
from bagua_bench.engine.watch import Watch

T = TypeVar("T")


class Stepper(Trainer):
    """Takes steps with an algorithm, its buckets and its schedule, which the subclass makes and may make anew."""

    algorithm: Algorithm
    comm: CountedComm
    buckets: list[Bucket]
    steps: int
    """Steps taken."""
    grad_norm: Tensor | None = None
    """Norm of the gradients of the last step before they were clipped; None where they are not."""

    _schedule: Schedule
    _gradients: Gradients
    _watch: Watch

    def __init__(self, find_unused: bool, max_norm: float | None, averaging: Callable[..., Any]) -> None:
        self._find_unused, self._max_norm = find_unused, max_norm
        self._backward = BackwardEnd(self._backward_ends)
        self._gradient_hooks = GradientHooks([], self._gradient_ready)
        self._make_averaging = averaging
        self._averaging: AveragingLoop | None = None
        self._done_at: Any = None
        self._accumulating = self._is_paused = self._stepping = self._is_closed = False
        self._in_forward = self._finished = self._synchronized = self._unscaled = self._nested = False
        self._unused: list[Parameter] = []
        self._versions: list[Any] = []
        self._weights: list[Any] = []

    # -- the training step ------------------------------------------------------------------------------------

    def step(self, closure: None = None) -> None:
        """Finish the step after the backward pass: communication, optimizer, gradients cleared."""
        if closure is not None:
            raise ValueError("closure: Engine.step() takes none; call backward() before it")
        self.synchronize()
        self.optimize()
        self.finish_step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def synchronize(self) -> None:
        self._refuse_closed()
        if self._synchronized:
            return
        if self._averaging is not None:
            self._averaging.leave()
            self._averaging.check()
        self._finish_gradients()
        self._finish_weights()
        if When.BACKWARD not in self._schedule.moments:
            self._unscale_once()
        self._synchronized = True

    def optimize(self) -> None:
        with self._averaging.mutate if self._averaging is not None else nullcontext():
            self._limit_gradients()
            self._watch.check_optimizer(self.optimizer)
            self._stepping = True
            try:
                self._advance()
            finally:
                self._stepping = False
            self._gradients.clear()
            before = self._watch.changes
            self._watch.bring_home()
            if self._watch.changes != before:
                self._schedule.look()

    def finish_step(self) -> None:
        self._schedule.land(When.STEP)  # what earlier steps have sent; its buckets can be sent again
        self._schedule.launch_all(When.STEP)
        self._schedule.land(When.STEP)
        self._begin(self.steps + 1)

    def give_up(self) -> None:
        """Call this instead of a forward or backward pass that failed on this rank, then `step()` as all ranks do.

        Otherwise the others would wait in vain. Where gradients are averaged, this rank's count as zeros; those of
        layers that were ready before the failure are under way already and count. Do here, too, what the other ranks
        do to gradients after `backward()`, such as clipping them by hand.
        """
        self._refuse_closed()
        self._backward.forget()
        if When.BACKWARD not in self._schedule.moments:
            self._gradients.clear()
            return
        for p in self._schedule.missing():
            self._unused.append(p)
            self._schedule.ready(self._gradients.zero(p), p)
        self._backward_is_over()
        self._finish_gradients()

    def join(self, batches: Iterable[T]) -> Iterator[T | None]:
        """Yield this rank's batches, one a step; then None, for which to `give_up()`, while others have more.

        Collective, with a tiny all-reduce a step; ranks may have different numbers of batches, and all leave the loop
        at the same step. With averaging rounds, in which no rank waits for another, a rank just ends.
        """
        return join(self, batches, self._anyone)

    def _hook_gradients(self) -> None:
        """Install the hooks on gradients anew: new data gives a parameter a new node of autograd."""
        self._gradient_hooks.remove()
        self._gradient_hooks = GradientHooks(self._gradients.params, self._gradient_ready)

    # -- between steps ----------------------------------------------------------------------------------------

    def _begin(self, steps: int) -> None:
        """Get ready for the step after `steps` steps."""
        self.steps = steps
        self._schedule.begin(steps + 1)
        self._backward.forget()
        self.gradients_done = None
        self._unused = []
        self._in_forward = self._finished = self._synchronized = self._unscaled = self._nested = False
        self._run_averaging()

    def _run_averaging(self) -> None:
        """Run the averaging loop if this step has one; weights then change only in `step()` and before a forward."""
        if When.ASYNC not in self._schedule.moments or self._is_paused:
            return
        if self._averaging is None:
            device, schedule = self.buckets[0].weight.device, self._schedule
            work = (schedule.snapshot, schedule.exchange, schedule.apply)
            self._averaging = self._make_averaging(self.comm, device, self.algorithm.pause, *work)
        self._averaging.start()
        self._averaging.enter()

    def _forward_begins(self) -> None:
        if self._in_forward:
            return
        self._in_forward = True
        replaced = self._watch.check()  # perhaps for this pass only: what is in the buckets may be wanted again
        if replaced:
            self._hook_gradients()
        elif When.FORWARD in self._schedule.moments:
            self._launch_weights()
        if self._averaging is not None:
            self._averaging.enter()

    # -- gradients and weights of a step ----------------------------------------------------------------------

    def _gradient_ready(self, p: Parameter) -> None:
        if self._accumulating:
            return
        index = self._gradients.bring_home(p)
        if When.BACKWARD in self._schedule.moments:
            if torch.is_grad_enabled():
                raise RuntimeError(
                    "backward(create_graph=True): the graph is lost when gradients are communicated; call it in "
                    "engine.no_sync(), or use torch.autograd.grad"
                )
            self._backward.expect()
            self._schedule.ready(index, p)
        elif self.scale is not None:
            if self._unscaled:
                raise RuntimeError(TWICE)
            self._backward.expect()

    def _backward_ends(self, nested: bool) -> None:
        """Finish the gradients if all are there or may be missing; otherwise `step()` does."""
        self._nested |= nested
        if When.BACKWARD not in self._schedule.moments:
            if not nested:
                self._unscale_once()
            return
        missing = self._schedule.missing()
        if missing and (nested or not (self._find_unused or all(p.grad is not None for p in missing))):
            return
        self._backward_is_over()
        self._finish_gradients()

    def _backward_is_over(self) -> None:
        """Note the time: the rest of `backward()` is waiting for communication."""
        self._done_at = stamp(self.buckets[0].weight.device, self._done_at)
        self.gradients_done = self._done_at

    def _finish_gradients(self) -> None:
        if self._finished:
            return
        communicated = When.BACKWARD in self._schedule.moments
        if communicated:
            self._resolve_missing()
        if self._schedule.consumes and self._max_norm is not None:
            self.grad_norm = self._gradients.clip(self._max_norm)
        self._schedule.land(When.BACKWARD)
        if communicated and self._find_unused:
            self._forget_unused()
        if communicated and self.scale is not None:  # an overflow on one rank is one on all
            overflow = self.scale.overflow
            self._schedule.run(lambda comm: comm.all_reduce(overflow, Op.MAX))
        self._versions = self._gradients.versions()
        self._finished = True

    def _resolve_missing(self) -> None:
        """Let parameters without a gradient take part with zeros, or raise an error that names them."""
        missing = self._schedule.missing()
        if not self._find_unused:
            self._gradients.refuse(missing)
        for p in missing:
            if p.grad is None:
                if self._nested:
                    raise RuntimeError(
                        "find_unused_parameters does not go with reentrant checkpointing, which hides the end of the "
                        "backward pass; pass use_reentrant=False to torch.utils.checkpoint"
                    )
                self._unused.append(p)
                self._schedule.ready(self._gradients.zero(p), p)
            else:
                self._schedule.ready(self._gradients.bring_home(p), p)

    def _forget_unused(self) -> None:
        """Take the zero gradient back from parameters that no rank used: the optimizer skips them."""
        used: list[bool] = []
        self._schedule.run(lambda comm: used.extend(self._gradients.used_anywhere(self._unused, comm)))
        for p, anywhere in zip(self._gradients.params, used, strict=True):
            if not anywhere:
                p.grad = None

    def _limit_gradients(self) -> None:
        """Clip the gradients that the optimizer will use; refuse changes of gradients that have been used up."""
        if self._schedule.consumes:
            if self._versions != self._gradients.versions() or self._gradients.replaced():
                raise RuntimeError(
                    "gradients were changed after backward(), when the algorithm had used them already; to clip them "
                    "pass max_grad_norm to Engine"
                )
        elif self._max_norm is not None:
            self.grad_norm = self._gradients.clip(self._max_norm)

    def _launch_weights(self) -> None:
        self._weights = self._watch.versions()
        self._schedule.launch_all(When.FORWARD)

    def _finish_weights(self) -> None:
        """Finish the averaging of weights that the forward pass began; begin it now if the hook was not called."""
        if self._schedule.has_launched(When.FORWARD):
            if self._schedule.reads_weights and self._weights != self._watch.versions():
                raise RuntimeError(
                    "weights were changed between forward and step(), while they were being averaged: change them "
                    "after step(), and after loading others call engine.load_state_dict() or engine.restart()"
                )
        elif When.FORWARD in self._schedule.moments:
            self._watch.bring_home()
            self._launch_weights()
        self._schedule.land(When.FORWARD)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the engine is closed: make another one to go on training")

    def _unscale_once(self) -> None:
        if not self._unscaled:
            self._unscale_own()
        self._unscaled = True

    def _unscale(self, gradients: Sequence[Tensor]) -> None:
        if self.scale is not None:
            self.scale.unscale(gradients)

    def _anyone(self, own: bool) -> bool | None:
        """Whether any rank passes True; None with averaging rounds."""
        if When.ASYNC in self._schedule.moments:
            return None
        flag = torch.tensor([own], dtype=torch.uint8, device=self.buckets[0].weight.device)
        self._schedule.run(lambda comm: comm.all_reduce(flag, Op.MAX))
        return bool(flag.item())
