"""How long a rank of the emulated machine computes. No torch import."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bagua_bench.configuration.cell import Cell, ClusterPart
from bagua_bench.machine.layers import Layers


@dataclass(frozen=True)
class Compute:
    """Seconds of one step of one rank, and the memory bandwidth of optimizer and codec, bytes/s."""

    forward: float
    backward: float
    optimizer: float
    memory_bandwidth: float
    origin: str
    """Where the time of a step comes from."""

    @property
    def step(self) -> float:
        """A whole step without communication."""
        return self.forward + self.backward + self.optimizer


def compute_of(cell: Cell, layers: Layers) -> Compute:
    """A cell's computing times: from `task.step_seconds`, otherwise the profile's entry, otherwise multiply-adds.

    In a scale model of time they are its own.
    """
    task, profile, accumulate = cell.task, cell.profile, cell.run.accumulate
    bandwidth = profile.memory_bandwidth * cell.haste / cell.shrink  # smaller tensors take as long as the originals
    batch = task.batch * accumulate
    known = profile.step_seconds.get(task.name)
    if task.step_seconds is not None:
        step, origin = task.step_seconds * accumulate, "task.step_seconds"
    elif known is not None and task.scale != "tiny":
        step, origin = known.seconds * batch / known.batch, f"compute={profile.name}"
    else:
        step = 6 * layers.macs * batch / profile.flops  # two FLOP per multiply-add; backward takes twice as many
        origin = f"multiply-adds at {profile.flops / 1e12:g} TFLOP/s (compute={profile.name})"
    step /= cell.haste
    optimizer = min(layers.elements * layers.optimizer_bytes / bandwidth, step / 2)
    passes = step - optimizer
    forward = profile.forward_share * passes
    return Compute(forward, passes - forward, optimizer, bandwidth, origin)


def speed_classes(cluster: ClusterPart) -> dict[float, int]:
    """Factors on the computing time, in ascending order, and how many ranks have each."""
    classes = Counter(slow_factors(cluster).values())
    classes[1.0] += cluster.ranks - len(cluster.slow_ranks)
    return {factor: classes[factor] for factor in sorted(classes) if classes[factor]}


def slow_factors(cluster: ClusterPart) -> dict[int, float]:
    """Factor on the computing time, for each rank that has one."""
    return {int(rank): float(factor) for rank, factor in cluster.slow_ranks.items()}
