"""QAdam: Adam that communicates its momentum in one bit per element (docs/algorithms.md, QAdam)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, cast

from torch.optim import Optimizer

from algorithms.base import Algorithm, Bucket, Carry, Comm, Least
from algorithms.codecs import CODECS
from algorithms.primitives import c_fp_s, c_lp_s, error_memory, errors_of
from algorithms.qadam_optimizer import QAdamOptimizer


class QAdam(Algorithm):
    """For `warmup_steps` steps Adam on averaged gradients; then v is frozen and the momenta are averaged, compressed.

    Takes over an Adam or AdamW, with its schedules, or stands in for another optimizer if `lr` is given; lr, betas, eps
    and weight_decay replace the optimizer's.
    """

    line_share = 0.25  # a fifth of a training run is the warm-up, and a bit of 32 is little beside it
    carry: ClassVar = {"sent_error": Carry.AVERAGE, "reduced_error": Carry.ZERO}

    def __init__(
        self,
        lr: float | None = None,
        warmup_steps: Annotated[int, Least(1)] = 100,
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
    ) -> None:
        self.hierarchical = hierarchical
        self.average = partial(c_lp_s, codec=CODECS[codec](), compress_single_rank=compress_single_rank)
        self.memory = partial(error_memory, feedback=error_feedback, alone=compress_single_rank)
        stages = (bias_correction, freeze_after, weight_decay_stage)
        given = {"lr": lr, "betas": betas and tuple(betas), "eps": eps, "weight_decay": weight_decay}
        self.take_over = partial(QAdamOptimizer.instead_of, given=given, warmup_steps=warmup_steps, stages=stages)

    def optimizer(self, given: Optimizer) -> Optimizer:
        return given if isinstance(given, QAdamOptimizer) else self.take_over(given)

    def consumes_gradients(self, step: int) -> bool:
        return step > self.trained.warmup_steps

    def start(self, buckets: Sequence[Bucket], comm: Comm, optimizer: Optimizer) -> None:
        self.trained = cast(QAdamOptimizer, optimizer)
        for bucket in buckets:
            self.trained.link(bucket)
            bucket.state = self.memory(bucket.weight, comm, hierarchical=self.hierarchical)

    def communicate(self, bucket: Bucket, comm: Comm, step: int) -> None:
        if not self.consumes_gradients(step):
            return c_fp_s(bucket.grad, comm)
        m, errors = self.trained.update_momentum(bucket), errors_of(bucket.state)
        return self.average(m, comm, errors=errors, elements=bucket.elements, hierarchical=self.hierarchical)

    def finish(self, bucket: Bucket, step: int) -> None:
        self.trained.taken = step - 1
