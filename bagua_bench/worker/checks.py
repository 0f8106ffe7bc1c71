"""Checks that must pass after a run for its numbers to count."""

from __future__ import annotations

import ctypes
import hashlib
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bagua_bench.comm.torch_groups import gathered
from bagua_bench.results.result import Checks


def check_replicas(model: nn.Module, consensus: float, trains: bool = True) -> Checks:
    """Compare the replicas of all ranks that train, which are all where consensus > 0; collective over the default
    group.

    `replicas`: "equal" (bit for bit) or "different", or with consensus > 0 the largest distance of a replica from the
    mean of all, relative to the mean of the replicas' norms.
    """
    params = [p.detach() for p in model.parameters()] if trains else []
    finite = _all(all(bool(torch.isfinite(p.sum(dtype=torch.float64))) for p in params))
    if not finite:
        return Checks(passed=False, reason="the weights hold NaN or Inf", finite=False)
    if consensus == 0:
        equal = _equal_digests(_digest(params) if trains else None)
        reason = None if equal else "the replicas differ, and this algorithm keeps them equal"
        return Checks(passed=equal, reason=reason, finite=True, replicas="equal" if equal else "different")
    distance = _consensus_distance(params)
    passed = distance <= consensus
    reason = None if passed else f"replicas are {distance:.3g} from their mean, allowed: {consensus:.3g}"
    return Checks(passed=passed, reason=reason, finite=True, replicas=distance)


def _all(value: bool) -> bool:
    flag = torch.tensor([int(value)])
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def _digest(params: list[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for p in params:
        values = p.cpu().contiguous()
        digest.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))  # .numpy() would fix the storage
    return digest.digest()


def _equal_digests(own: bytes | None) -> bool:
    return len({digest for digest in gathered(own) if digest is not None}) == 1


def _consensus_distance(params: list[Tensor]) -> float:
    away, own = 0.0, 0.0
    for p in params:
        values = p.double().cpu()
        mean = values.clone()  # of float64 on a CPU, `values` are the model's own
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        away += float((values - mean).square().sum())
        own += float(values.square().sum())
    worst, norms = torch.tensor([math.sqrt(away), math.sqrt(own)], dtype=torch.float64).split(1)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    dist.all_reduce(norms)
    return float(worst * dist.get_world_size() / norms) if norms else 0.0
