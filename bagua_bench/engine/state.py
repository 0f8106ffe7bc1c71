"""An algorithm's state by parameter, so that it survives other buckets; the rest survives in the same ones only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from algorithms.base import Algorithm, Bucket, Carry

Names = Mapping[Parameter, str]


def collect(buckets: Sequence[Bucket], names: Names) -> dict[str, Any]:
    """Views of all state: `parameters`, by name; `buckets`, the rest, by the names of the parameters in them."""
    parameters: dict[str, dict[str, Tensor]] = {names[p]: {} for bucket in buckets for p in bucket.params}
    rest: dict[str, dict[str, Tensor]] = {}
    for bucket in buckets:
        for key, views in _by_parameter(bucket):
            for p, view in zip(bucket.params, views, strict=True):
                parameters[names[p]][key] = view
        for key, value in bucket.state.items():
            if not _by_element(bucket, value):
                rest.setdefault(_members(bucket, names), {})[key] = value
    return {"parameters": parameters, "buckets": rest}


def problem(buckets: Sequence[Bucket], names: Names, saved: Mapping[str, Any]) -> str | None:
    """The first reason why `saved`, from `collect`, does not fit these buckets; None if it fits."""
    own, other = collect(buckets, names)["parameters"], saved["parameters"]
    for name in [*own, *other]:
        if name not in own or name not in other:
            return f"{name}: only the {'engine' if name in own else 'checkpoint'} has it"
        if different := (own[name].keys() ^ other[name].keys()) - {*saved.get("fresh", ())}:
            side = "engine" if min(different) in own[name] else "checkpoint"
            return f"{name}: only the {side} has {min(different)} of it; another algorithm, or other options"
        for key, value in own[name].items():
            if key in other[name] and value.shape != other[name][key].shape:
                shapes = tuple(other[name][key].shape), tuple(value.shape)
                return f"{name}: {key} has shape {shapes[0]} in the checkpoint and {shapes[1]} in the engine"
    return None


def restore(buckets: Sequence[Bucket], names: Names, saved: Mapping[str, Any]) -> None:
    """Overwrite state with the saved one; state of a whole bucket only if the same bucket exists here."""
    for bucket in buckets:
        for key, views in _by_parameter(bucket):
            for p, view in zip(bucket.params, views, strict=True):
                if key in saved["parameters"].get(names[p], {}):
                    view.copy_(saved["parameters"][names[p]][key])
        same = saved["buckets"].get(_members(bucket, names), {})
        for key, value in bucket.state.items():
            if not _by_element(bucket, value) and key in same and same[key].shape == value.shape:
                value.copy_(same[key])


def carry_over(everyone: Sequence[Mapping[str, Any]], algorithm: Algorithm) -> dict[str, Any]:
    """The ranks' saved state for a world of another size, each name by the rule in `Algorithm.carry`.

    ValueError that names state without a rule.
    """
    result: dict[str, Any] = {"parameters": {}, "buckets": {}}
    for kind, found in result.items():
        for name, states in everyone[0][kind].items():
            found[name] = {}
            for key, first in states.items():
                if key not in algorithm.carry:
                    raise ValueError(
                        f"{name}: {type(algorithm).__name__}.carry does not say what becomes of {key} with another "
                        f"number of ranks; allowed: {', '.join(rule.value for rule in Carry)}"
                    )
                rule = algorithm.carry[key]
                if rule is Carry.KEEP:
                    found[name][key] = first
                elif rule is Carry.AVERAGE:
                    found[name][key] = mean(one[kind][name][key] for one in everyone)
    return {**result, "fresh": [key for key, rule in algorithm.carry.items() if rule is Carry.ZERO]}


def mean(tensors: Iterable[Tensor]) -> Tensor:
    """The mean of tensors of one shape and type; of integers the first."""
    all_ = list(tensors)
    if not all_[0].is_floating_point():
        return all_[0]
    return torch.stack([x.double() for x in all_]).mean(0).to(all_[0].dtype)


def _by_parameter(bucket: Bucket) -> list[tuple[str, list[Tensor]]]:
    flat = [(key, bucket.views(value)) for key, value in bucket.state.items() if _by_element(bucket, value)]
    return [*flat, *bucket.each.items()]


def _by_element(bucket: Bucket, value: Tensor) -> bool:
    return value.shape == bucket.weight.shape


def _members(bucket: Bucket, names: Names) -> str:
    return " ".join(names[p] for p in bucket.params)
