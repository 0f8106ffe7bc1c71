"""A group is connected, as the environment asks; all its ranks must ask alike."""

from __future__ import annotations

import json
import os
from typing import Any

from bagua_bench.configuration.network_shape import INT8
from bagua_bench.transport import order
from bagua_bench.transport.native import HANDLE, NAME, Group, announce

ORDER, GIVEN, MEASURED = "BAGUA_NET_ORDER", "given", "measured"
WIRE, EXACT = "BAGUA_NET_WIRE", "exact"
_ALLOWED = {ORDER: (GIVEN, MEASURED), WIRE: (EXACT, INT8)}  # the default first

_OLDER = "an older version"

Choices = dict[str, str]


def joined(store: Any, rank: int, size: int, timeout: float) -> Group:
    """Connect to all ranks through torch's store; collective, `timeout` in seconds is for each step.

    ValueError, in one line, for a choice that is not allowed or not that of the other ranks.
    """
    chosen, how = choices(), ""
    group = Group(rank, size)
    try:
        group.join(_exchange(store, group, {**chosen, **group.agreement()}), timeout)
        if chosen[WIRE] == INT8:
            group.use_int8()
        if chosen[ORDER] == MEASURED and (found := order.settle(group, timeout)):
            how = f"; {found}"
    except BaseException:
        group.close()
        raise
    if rank == 0:
        announce(f"{NAME} in use: {size} ranks, {group.describe()}{how}")
    return group


def choices() -> Choices:
    """By variable. ValueError, in one line, for a value that is not allowed."""
    found = {variable: os.environ.get(variable) or allowed[0] for variable, allowed in _ALLOWED.items()}
    for variable, choice in found.items():
        if choice not in _ALLOWED[variable]:
            raise ValueError(f"{variable}={choice}: allowed: {', '.join(_ALLOWED[variable])}")
    return found


def _exchange(store: Any, group: Group, own: Choices) -> list[bytes]:
    """The handles of all ranks; ValueError, on every rank, if they do not choose alike."""
    store.set(f"{NAME}/{group.rank}", group.handle + json.dumps(own).encode())
    found = [bytes(store.get(f"{NAME}/{rank}")) for rank in range(group.size)]
    first, *others = (json.loads(each[HANDLE:] or b"{}") for each in found)
    for rank, other in enumerate(others, 1):
        for variable in own:
            choice, another = first.get(variable, _OLDER), other.get(variable, _OLDER)
            if another != choice:
                differ = f"{choice} on rank 0, {another} on rank {rank}"
                raise ValueError(f"{variable}: {differ}; allowed: the same on all ranks")
    return [each[:HANDLE] for each in found]
