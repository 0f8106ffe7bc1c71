"""A measured device as an option of the group `compute`: the form of conf/compute/v100.yaml. No torch import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bagua_bench.machine.layers import Layers


@dataclass(frozen=True)
class Measured:
    """Seconds of one step of a task on one device, medians over steps; `codec`: of coding all its elements once.

    codec_bytes: the memory traffic that is charged for coding where it is emulated.
    """

    task: str
    batch: int
    forward: float
    backward: float
    optimizer: float
    codec: float
    codec_bytes: float

    @property
    def step(self) -> float:
        """A whole step without communication."""
        return self.forward + self.backward + self.optimizer


def text(measured: Sequence[tuple[Measured, Layers]], head: Sequence[str]) -> str:
    """The file: `head` and individual times as comments, then the keys of `bagua_bench.configuration.resolve.Compute`.

    Memory bandwidth is that of optimizers and codecs together: their bytes divided by their seconds. A task without
    an entry gets the median task's rate of multiply-adds; forward and backward share a step as in all tasks together.
    """
    bytes_moved = sum(m.codec_bytes + layers.elements * layers.optimizer_bytes for m, layers in measured)
    bandwidth = bytes_moved / sum(m.codec + m.optimizer for m, _ in measured)
    flops = median(6 * layers.macs * m.batch / m.step for m, layers in measured)
    forward = sum(m.forward for m, _ in measured)
    share = forward / (forward + sum(m.backward for m, _ in measured))
    lines = [
        *(f"# {line}" for line in head),
        "# Seconds of a step: forward + backward + optimizer, and separately a codec over as many elements:",
        *(f"#   {m.task}: {m.forward:.4g} + {m.backward:.4g} + {m.optimizer:.4g}, {m.codec:.4g}" for m, _ in measured),
        "step_seconds:",
        *(f"  {m.task}: {{seconds: {m.step:.4g}, batch: {m.batch}}}" for m, _ in measured),
        f"flops: {flops:.4g}",
        f"forward_share: {share:.4f}",
        f"memory_bandwidth: {bandwidth / 1e9:.4g}GB",
        "shrink: 1",
        "haste: 1",
        "optimizer: profile",
        "codec: profile",
    ]
    return "\n".join(lines) + "\n"
