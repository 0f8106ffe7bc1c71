"""QAdam: Adam that communicates its momentum in one bit per element (spec: algorithms 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Comm
from algorithms.codecs import CODECS
from algorithms.primitives import c_fp_s, c_lp_s, error_memory
from algorithms.qadam_optimizer import QAdamOptimizer


class QAdam(Algorithm):
    """For `warmup_steps` steps Adam on averaged gradients; then v is frozen and the momenta are averaged, compressed.

    Trains with the `QAdamOptimizer` it is given, else with one of its own, made of the arguments of the same names.
    preset="released": rows 1-5 and 8 of spec 0.2, over all other arguments.
    """

    def __init__(
        self,
        lr: float = 1e-3,
        warmup_steps: int = 100,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        codec: Literal["one_bit", "minmax_uint8"] = "one_bit",
        error_feedback: bool = True,
        bias_correction: Literal["frozen", "drift"] = "frozen",
        freeze_after: Literal["warmup", "warmup_minus_one"] = "warmup",
        weight_decay_stage: Literal["both", "warmup"] = "both",
        hierarchical: bool = True,
        compress_single_rank: bool = False,
        preset: Literal["default", "released"] = "default",
    ) -> None:
        released = preset == "released"
        chosen = CODECS["minmax_uint8" if released else codec]()
        single = compress_single_rank or released
        self.average = partial(c_lp_s, codec=chosen, hierarchical=hierarchical, compress_single_rank=single)
        self.error_feedback, self.hierarchical = error_feedback and not released, hierarchical
        stages = (
            ("drift", "warmup_minus_one", "warmup") if released else (bias_correction, freeze_after, weight_decay_stage)
        )
        self.own_optimizer = partial(
            QAdamOptimizer, lr=lr, warmup_steps=warmup_steps, eps=eps, weight_decay=weight_decay, stages=stages
        )

    def optimizer(self, params: Any, default: Optimizer) -> Optimizer:
        return default if isinstance(default, QAdamOptimizer) else self.own_optimizer(params)

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        assert isinstance(optimizer, QAdamOptimizer)
        self.trained = optimizer
        for bucket in buckets:
            optimizer.link(bucket)
            if self.error_feedback:
                bucket.state |= error_memory(bucket.weight, comm, self.hierarchical)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        if step <= self.trained.warmup_steps:
            c_fp_s(bucket.grad, comm)
            return
        momentum = self.trained.update_momentum(bucket)
        errors = (bucket.state["sent_error"], bucket.state["reduced_error"]) if self.error_feedback else None
        self.average(momentum, comm, errors=errors, elements=bucket.elements)
