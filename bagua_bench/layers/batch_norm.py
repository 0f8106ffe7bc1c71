"""Batch normalization over the samples of all ranks, on CPUs and GPUs (docs/batch-norm.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from bagua_bench.comm import CountedComm
from bagua_bench.comm.torch_groups import TorchComm

_HALF = (torch.float16, torch.bfloat16)


class SyncBatchNorm(_BatchNorm):
    """`nn.BatchNorm1d`, 2d or 3d whose mean and variance are those of all ranks' samples while it trains.

    Input: (samples, channels, ...); samples and places may differ between ranks. All ranks have to call it equally
    often and in the same order, forward and backward. ValueError where all ranks together have one value per channel.
    Source: Ioffe and Szegedy 2015, over a batch that is spread out.
    """

    def __init__(self, like: _BatchNorm, comm: CountedComm) -> None:
        """Share the parameters and buffers of `like`. `comm` is used by layers of one model alone."""
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self._parameters.update(like._parameters)
        self._buffers.update(like._buffers)
        self.training = like.training
        self._shared = _Shared(comm)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize, and while training update the running statistics."""
        self._check_input_dim(input)
        comm = self._shared.comm
        if not self.training or comm is None or comm.size == 1:
            return super().forward(input)
        y, mean, variance, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, comm
        )
        if self.running_mean is not None and self.running_var is not None:
            self._follow(mean, variance * (count / (count - 1)))
        result: Tensor = y
        return result

    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: input of shape {tuple(input.shape)}; expected (samples, channels, ...)")


class _Shared:
    """A communicator that copies of a layer share; one that comes out of a file has none, and normalizes alone."""

    def __init__(self, comm: CountedComm | None) -> None:
        self.comm = comm

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self

    def __reduce__(self) -> Any:
        return _Shared, (None,)


class _Normalize(Function):
    """Normalizes, and returns mean (channels,), variance (channels,) and the number of values per channel as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, comm: CountedComm) -> Any:
        wide = x.float() if x.dtype in _HALF else x
        mean, variance, count = _statistics(wide, comm)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.count, ctx.comm = eps, count, comm
        scale, shift = _as(wide, weight, bias)
        y = F.batch_norm(wide, mean, variance, scale, shift, False, 0.0, eps).to(x.dtype)
        total = torch.tensor(count, dtype=mean.dtype)
        ctx.mark_non_differentiable(mean, variance, total)
        return y, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        x, given, mean, variance = ctx.saved_tensors
        wide, dy = (x.float(), dy.float()) if x.dtype in _HALF else (x, dy)
        [weight] = _as(wide, given)
        if x.numel():
            fixed = (None, None, False, ctx.eps, [True, True, True])  # of a layer whose statistics are constants
            dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(dy, wide, weight, mean, variance, *fixed)
        else:  # which torch's kernel divides by
            dx, dweight, dbias = torch.zeros_like(wide), torch.zeros_like(mean), torch.zeros_like(mean)
        shared = torch.stack([dbias, dweight])
        ctx.comm.all_reduce(shared)
        by_mean, by_variance = shared / ctx.count
        scale = (variance + ctx.eps).rsqrt()
        slope = -by_variance * scale
        if weight is not None:
            scale = scale * weight
        # dx - scale (by_mean + (x - mean) / deviation by_variance)
        dx = dx + _along(scale * slope, x) * (wide - _along(mean, x)) - _along(scale * by_mean, x)
        affine = (dweight.to(given.dtype), dbias.to(given.dtype)) if given is not None else (None, None)
        return dx.to(x.dtype), *affine, None, None


def _as(x: Tensor, *given: Tensor | None) -> list[Tensor | None]:
    """Weights in the type of x: torch's kernel mixes no others."""
    return [None if each is None else each.to(x.dtype) for each in given]


def _statistics(x: Tensor, comm: CountedComm) -> tuple[Tensor, Tensor, int]:
    """Mean and variance per channel, and the number of values, of all ranks' x."""
    channels, own = x.shape[1], x.numel() // max(1, x.shape[1])
    row = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
    if own:
        variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        row[:channels], row[channels:-1], row[-1] = mean, variance, own
    rows = comm.all_gather(row)
    means, variances, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
    count = int(counts.sum())
    if count < 2:
        raise ValueError(f"SyncBatchNorm: {count} values per channel on all ranks; training needs more than 1")
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    return mean.to(x.dtype), variance.to(x.dtype), count


def _along(values: Tensor, x: Tensor) -> Tensor:
    """(channels,) so that it goes with x (samples, channels, ...)."""
    return values.view(-1, *[1] * (x.dim() - 2))


def synchronize_batch_norms(model: nn.Module, comm: CountedComm | None = None) -> nn.Module:
    """Have all batch norms of a model take their statistics over all ranks; return it. Collective.

    Parameters and buffers stay the same objects, under the same names. On GPUs the layers are torch's own
    `nn.SyncBatchNorm`. comm: the ranks; by default all of the job. ValueError for a lazy layer that is not yet made.
    """
    comm = TorchComm.default() if comm is None else comm
    return _converted(model, comm.another(), {}) if comm.size > 1 else model


def _converted(module: nn.Module, comm: CountedComm, done: dict[nn.Module, nn.Module]) -> nn.Module:
    """The module, or what takes its place; `done` has those that were met before, as one may have several names."""
    if module not in done:
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, _converted(child, comm, done))
        done[module] = _synchronized(module, comm)
    return done[module]


def _synchronized(module: nn.Module, comm: CountedComm) -> nn.Module:
    if not isinstance(module, _BatchNorm) or isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
        return module
    if isinstance(module, _LazyNormBase):
        raise ValueError(f"{type(module).__name__}: not made yet; call the model once before this")
    some = next((x for x in (module.weight, module.running_mean) if x is not None), None)
    if some is not None and some.is_cuda:
        assert isinstance(comm, TorchComm), "CUDA tensors go through a torch process group"
        made: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module, comm.group)
        return made
    return SyncBatchNorm(module, comm)
