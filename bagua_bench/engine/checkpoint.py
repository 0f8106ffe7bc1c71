"""Checkpoints of all ranks in one folder, each rank's own under its name, through torch.distributed.checkpoint."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bagua_bench.engine import state

if TYPE_CHECKING:
    from bagua_bench.engine.saved import Saved

_METADATA = ".metadata"  # of torch.distributed.checkpoint; it is written last


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a whole checkpoint."""
    return (folder / _METADATA).exists()


def save(engine: Saved, folder: Path, extra: Mapping[str, Any] | None) -> None:
    """Write model, optimizer, algorithm and `extra` of every rank; collective. ValueError if one is there already."""
    from torch.distributed.checkpoint.state_dict_saver import save as write  # imports much

    if is_complete(folder):
        raise ValueError(f"folder={folder}: holds a checkpoint already; give each one a folder of its own")
    own = {
        "model": engine.model.state_dict(),
        "optimizer": engine.optimizer.state_dict(),
        "engine": engine.state_dict(),
        "extra": dict(extra or {}),
    }
    name, tensors = _rank(engine.comm.rank), list[Tensor]()
    file = io.BytesIO()
    _Pickler(file, tensors).dump(own)
    parts = {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}
    write({name: file.getvalue(), **parts}, checkpoint_id=folder, process_group=_group(engine))


def load(engine: Saved, folder: Path) -> dict[str, Any]:
    """Continue from this rank's part, or from all parts if there were more or fewer ranks; collective.

    ValueError, with nothing changed, if it does not fit.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as read

    if not is_complete(folder):
        raise ValueError(f"folder={folder}: holds no complete checkpoint")
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    ranks = sum(1 for key in known if "." not in key)

    def of(rank: int) -> dict[str, Any]:
        name = _rank(rank)
        own: dict[str, Any] = {name: None}
        for key, stored in known.items():
            if key.startswith(f"{name}."):
                own[key] = torch.empty(stored.size, dtype=stored.properties.dtype)  # type: ignore[union-attr]
        read(own, checkpoint_id=folder, process_group=_group(engine))
        found: dict[str, Any] = _Unpickler(io.BytesIO(own[name]), name, own).load()
        return found

    saved = of(engine.comm.rank % ranks)
    if ranks != engine.comm.size:
        saved = _for_another_world(saved, [of(rank) for rank in range(ranks)], engine)
    _refuse_other_model(engine, saved["model"])
    engine.refuse_other_state(saved["engine"])
    engine.optimizer.load_state_dict(saved["optimizer"])
    engine.model.load_state_dict(saved["model"])
    engine.load_state_dict(saved["engine"])
    extra: dict[str, Any] = saved["extra"]
    return extra


def _for_another_world(saved: dict[str, Any], everyone: Sequence[dict[str, Any]], engine: Saved) -> dict[str, Any]:
    """The state with which this rank continues after more or fewer ranks saved theirs.

    Weights and buffers of replicas that differ become their mean; the algorithm's state follows its `carry`;
    optimizer and `extra` are those of rank r mod the number of ranks that saved. Messages under way between ranks
    are dropped.
    """
    models = [one["model"] for one in everyone]
    model = saved["model"]
    if engine.consensus > 0:
        model = {name: state.mean(one[name] for one in models) for name in models[0]}
    carried = state.carry_over([one["engine"] for one in everyone], engine.algorithm)
    steps = everyone[0]["engine"]["steps"]
    own = {"steps": steps, "rank": engine.comm.rank, "ranks": engine.comm.size, "pending": [], "weights": None}
    return {**saved, "model": model, "engine": {**own, **carried}}


class _Pickler(pickle.Pickler):
    """Puts tensors into a list, and their numbers in their place."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self._tensors.append(value.detach())
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, name: str, parts: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._name, self._parts = name, parts

    def persistent_load(self, number: int) -> Any:
        return self._parts[f"{self._name}.{number}"]


def _rank(rank: int) -> str:
    return f"rank{rank}"


def _group(engine: Saved) -> Any:
    group = getattr(engine.comm, "group", None)
    if group is None:
        raise ValueError("comm: checkpoints of all ranks need a process group of torch.distributed")
    return group


def _refuse_other_model(engine: Saved, saved: Mapping[str, Any]) -> None:
    own = engine.model.state_dict()
    for name in [*own, *saved]:
        if name not in saved or name not in own:
            raise ValueError(f"checkpoint: {name}: only the {'checkpoint' if name in saved else 'model'} has it")
        if isinstance(own[name], Tensor) and own[name].shape != saved[name].shape:
            shapes = tuple(saved[name].shape), tuple(own[name].shape)
            raise ValueError(f"checkpoint: {name}: shape {shapes[0]}, the model's is {shapes[1]}")
