"""Records as runs of TensorBoard: curves by step, and settings beside results. Needs the package tensorboard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bagua_bench.analysis import frame
from bagua_bench.results.records import Record

_CURVES = {"losses": "loss", "step_seconds": "step_seconds"}
_SUMMARY = ("throughput", "epoch_seconds")
_PLAIN = (bool, int, float, str)


def write(records: Sequence[Record], folder: Path) -> int:
    """One run of TensorBoard for each record that has a result; how many.

    They are FOLDER/CAMPAIGN/ALGORITHM-CELL-ROUND-TIME, by the time at which each began. Losses begin with the untimed
    steps.
    """
    from torch.utils.tensorboard import SummaryWriter

    done = [record for record in records if record["result"] is not None]
    for record in done:
        result, at = record["result"], datetime.fromisoformat(record["began"])
        began, untimed = at.timestamp(), record["config"]["run"]["untimed"]
        name = f"{record['config']['algo']['name']}-{record['cell']}-{record['round']}-{at:%Y%m%dT%H%M%S}"
        with SummaryWriter(str(folder / record["campaign"] / name)) as writer:
            for key, title in _CURVES.items():
                for step, value in enumerate(result.get(key) or (), 1 if key == "losses" else 1 + untimed):
                    writer.add_scalar(title, value, step, began)
            metrics = {**result.get("metrics", {}), **{key: result.get(key) for key in _SUMMARY}}
            numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
            writer.add_hparams(_settings(record), numbers, run_name=".", global_step=len(result["step_seconds"]))
    return len(done)


def _settings(record: Record) -> dict[str, Any]:
    values = frame.config_row(record["config"])
    return {key: value if isinstance(value, _PLAIN) else str(value) for key, value in values.items()}
