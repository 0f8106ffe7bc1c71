"""The published points, and the cells that stand for them. No torch import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

SQUAD, IMAGENET = 88_641, 1_281_167
"""Samples of an epoch."""

FIGURES = ("vgg16_128gpu", "bert_large_bandwidth", "bert_large_latency", "bagua_net_vgg16_32gpu")
"""Files of `results/paper/` whose points are times of steps."""

_SYSTEMS = {"pytorch_ddp": "ddp", "horovod": "horovod", "byteps": "byteps"}
_TASKS = {"vgg16_imagenet": "vgg16", "vgg16_synthetic": "vgg16", "bert_large_squad": "bert_large"}
_ALGORITHMS = {
    # (label, task): the algorithm it really was, judging by its traffic; QAdam past its warm-up
    ("decentralized", "vgg16"): ["algo=decentralized", "algo.peers=all"],
    ("decentralized", "bert_large"): ["algo=decentralized", "algo.peers=shift_one"],
    ("qadam", "vgg16"): ["algo=qadam", "algo.codec=minmax_uint8", "algo.error_feedback=false", "algo.warmup_steps=1"],
    ("qadam_1bit", "bert_large"): ["algo=qadam", "algo.codec=one_bit", "algo.warmup_steps=1"],
}
_IMPOSSIBLE = {("vgg16_128gpu", 10.0, name) for name in ("bytegrad", "qadam", "low_precision_decentralized")}
"""Bars that a 10 Gbit/s interface could not carry even with full overlap: shown, not fitted."""


@dataclass(frozen=True)
class Point:
    """One published number: seconds of an epoch, or samples per second, and the cell that predicts it."""

    figure: str
    label: str
    gpus: int
    bandwidth: float  # Gbit/s
    latency: float  # ms, added
    metric: str
    value: float
    error: float
    overrides: tuple[str, ...]
    fitted: bool

    def step_seconds(self, batch: int) -> float:
        """Seconds of a step of `batch` samples per GPU."""
        if self.metric == "epoch_seconds":
            return self.value / math.ceil(SQUAD / (batch * self.gpus))
        return batch * self.gpus / self.value

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the measurement; two figures may show the same one."""
        return (*self.overrides, self.metric)


def points(folder: Path) -> list[Point]:
    """All points of the figures, in the order of the files."""
    found = []
    for figure in FIGURES:
        data = pd.read_csv(folder / f"{figure}.csv")
        wanted = data["metric"].isin(["throughput", "epoch_time"]) & data["x"].isna()
        wanted |= data["metric"] == "throughput_mean"
        found += [_point(row) for row in data[wanted].to_dict("records")]
    return found


def _point(row: dict[str, object]) -> Point:
    task, label = _TASKS[str(row["task"])], str(row["algorithm"])
    gpus, bandwidth, latency = (
        int(str(row["gpus"])),
        float(str(row["bandwidth_gbps"])),
        float(str(row["added_latency_ms"])),
    )
    bagua = row["system"] == "bagua"
    algorithm = _ALGORITHMS.get((label, task), [f"algo={label}"]) if bagua else [f"algo={_SYSTEMS[str(row['system'])]}"]
    overrides = (
        f"task={task}",
        *algorithm,
        "transport=" + ("nccl_bagua_net" if row["transport"] == "bagua_net" else "nccl"),
        f"cluster.servers={gpus // 8}",
        f"network.bandwidth={bandwidth:g}gbit",
        f"network.latency={latency:g}ms",
        *(["network.software_delay=true"] if latency else []),
    )
    metric = "epoch_seconds" if row["metric"] == "epoch_time" else "throughput"
    value, error = float(str(row["value"])), float(str(row["reading_error"]))
    possible = (row["figure"], bandwidth, label) not in _IMPOSSIBLE
    name = label if bagua else str(row["system"])
    return Point(str(row["figure"]), name, gpus, bandwidth, latency, metric, value, error, overrides, possible)


def end_to_end(folder: Path) -> list[tuple[str, list[str], float]]:
    """Label, overrides and step seconds of the end-to-end VGG16 runs: 90 epochs of ImageNet on 128 GPUs at 100 Gbit/s.

    BytePS's curve was cut off before its end and is left out.
    """
    data = pd.read_csv(folder / "e2e_curves.csv")
    ends = data[(data["figure"] == "e2e_vgg16") & (data["metric"] == "curve_end") & (data["system"] != "byteps")]
    found = []
    for row in ends.to_dict("records"):
        label = "bytegrad" if row["system"] == "bagua" else _SYSTEMS[str(row["system"])]
        steps = 90 * math.ceil(IMAGENET / (32 * 128))
        overrides = ["task=vgg16", f"algo={label}", "transport=nccl", "cluster.servers=16", "network.bandwidth=100gbit"]
        found.append((label, overrides, 60 * float(str(row["value"])) / steps))
    return found


def distinct(chosen: Sequence[Point]) -> list[Point]:
    """One point per measurement: the first if several figures show it."""
    seen: dict[tuple[str, ...], Point] = {}
    for point in chosen:
        seen.setdefault(point.key, point)
    return list(seen.values())
