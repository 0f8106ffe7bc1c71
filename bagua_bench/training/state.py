"""An algorithm's state by parameter, so that it survives other buckets; the rest survives in the same ones only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Bucket

Names = Mapping[Parameter, str]


def collect(buckets: Sequence[Bucket], names: Names) -> dict[str, Any]:
    """Views of all state: `parameters` by name, in the parameters' shapes; `buckets`: the rest, by what is in them."""
    parameters: dict[str, dict[str, Tensor]] = {names[p]: {} for bucket in buckets for p in bucket.params}
    rest: dict[str, dict[str, Tensor]] = {}
    for bucket in buckets:
        for key, value in bucket.state.items():
            if _by_element(bucket, value):
                for p, view in zip(bucket.params, bucket.views(value), strict=True):
                    parameters[names[p]][key] = view
            else:
                rest.setdefault(_members(bucket, names), {})[key] = value
    return {"parameters": parameters, "buckets": rest}


def problem(buckets: Sequence[Bucket], names: Names, saved: Mapping[str, Any]) -> str | None:
    """Why `saved`, from `collect`, does not fit these buckets: the first difference; None if it does."""
    own, other = collect(buckets, names)["parameters"], saved["parameters"]
    for name in [*own, *other]:
        if name not in own or name not in other:
            return f"{name}: only the {'engine' if name in own else 'checkpoint'} has it"
        if different := own[name].keys() ^ other[name].keys():
            side = "engine" if min(different) in own[name] else "checkpoint"
            return f"{name}: only the {side} has {min(different)} of it; another algorithm, or other options"
        for key, value in own[name].items():
            if value.shape != other[name][key].shape:
                shapes = tuple(other[name][key].shape), tuple(value.shape)
                return f"{name}: {key} has shape {shapes[0]} in the checkpoint and {shapes[1]} in the engine"
    return None


def restore(buckets: Sequence[Bucket], names: Names, saved: Mapping[str, Any]) -> None:
    """Overwrite state with what was saved of it; what belongs to a bucket only where the same one is here."""
    for bucket in buckets:
        same = saved["buckets"].get(_members(bucket, names), {})
        for key, value in bucket.state.items():
            if _by_element(bucket, value):
                for p, view in zip(bucket.params, bucket.views(value), strict=True):
                    if key in saved["parameters"].get(names[p], {}):
                        view.copy_(saved["parameters"][names[p]][key])
            elif key in same and same[key].shape == value.shape:
                value.copy_(same[key])


def _by_element(bucket: Bucket, value: Tensor) -> bool:
    return value.shape == bucket.weight.shape


def _members(bucket: Bucket, names: Names) -> str:
    return " ".join(names[p] for p in bucket.params)
