"""QAdam: Adam that communicates its momentum in one bit per element (spec: algorithms 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Comm
from algorithms.codecs import CODECS
from algorithms.primitives import c_fp_s, c_lp_s, error_memory
from algorithms.qadam_optimizer import QAdamOptimizer


class QAdam(Algorithm):
    """For `warmup_steps` steps Adam on averaged gradients; then v is frozen and the momenta are averaged, compressed.

    Takes over an Adam or AdamW with its groups, state and schedules, or stands in for another optimizer if `lr` is
    given; the arguments lr, betas, eps and weight_decay that are given replace the optimizer's. A `QAdamOptimizer`
    brings its own warm-up and stages. preset="released": rows 1-5 and 8 of spec 0.2, over all other arguments.
    """

    def __init__(
        self,
        lr: float | None = None,
        warmup_steps: int = 100,
        weight_decay: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
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
        single = compress_single_rank or released
        self.average = partial(
            c_lp_s,
            codec=CODECS["minmax_uint8" if released else codec](),
            hierarchical=hierarchical,
            compress_single_rank=single,
        )
        self.memory = partial(error_memory, hierarchical=hierarchical, compress_single_rank=single)
        self.error_feedback = error_feedback and not released
        stages = (
            ("drift", "warmup_minus_one", "warmup") if released else (bias_correction, freeze_after, weight_decay_stage)
        )
        asked = {"lr": lr, "betas": betas and tuple(betas), "eps": eps, "weight_decay": weight_decay}
        given = {key: value for key, value in asked.items() if value is not None}
        self.take_over = partial(QAdamOptimizer.instead_of, warmup_steps=warmup_steps, stages=stages, given=given)

    def optimizer(self, given: Optimizer) -> Optimizer:
        return given if isinstance(given, QAdamOptimizer) else self.take_over(given)

    def consumes_gradients(self, step: int) -> bool:
        return step > self.trained.warmup_steps

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        assert isinstance(optimizer, QAdamOptimizer)
        self.trained = optimizer
        for bucket in buckets:
            optimizer.link(bucket)
            if self.error_feedback:
                bucket.state |= self.memory(bucket.weight, comm)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        if step <= self.trained.warmup_steps:
            c_fp_s(bucket.grad, comm)
            return
        momentum = self.trained.update_momentum(bucket)
        errors = (bucket.state["sent_error"], bucket.state["reduced_error"]) if self.error_feedback else None
        self.average(momentum, comm, errors=errors, elements=bucket.elements)

    def finish(self, bucket: Bucket, step: int) -> None:
        self.trained.taken = step - 1
