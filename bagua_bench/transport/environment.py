"""Environment variables that the compiled transport reads, and those that make NCCL use it."""

from __future__ import annotations

import os

from bagua_bench import libraries
from bagua_bench.configuration.cell import TransportPart
from bagua_bench.transport import native

NCCL_NAME = "BaguaNet"


def for_nccl(streams: int) -> dict[str, str]:
    """Variables for any program that uses NCCL.

    NCCL_NET turns a plugin that cannot be loaded into an error. NCCL 2.28 and 2.29 forget a plugin when the last
    communicator goes (https://github.com/NVIDIA/nccl/issues/1978) unless they count references.
    """
    return {
        "NCCL_NET_PLUGIN": str(libraries.plugin()),
        "NCCL_NET": NCCL_NAME,
        "NCCL_NET_PLUGIN_REF_COUNT": "1",
        **for_torch(streams),
    }


def for_torch(streams: int) -> dict[str, str]:
    """Variables for the torch.distributed backend."""
    return {"BAGUA_NET_STREAMS": str(streams)}


def streams(transport: TransportPart) -> dict[str, list[dict[str, float]]] | None:
    """Counters of the NCCL plugin per comm and stream of this process; None with any other transport."""
    return native.report_plugin() if transport.plugin else None


def apply(transport: TransportPart) -> None:
    """Prepare this process for a resolved `transport` group, before it makes its first process group."""
    if transport.streams is not None:
        choose = for_nccl if transport.plugin else for_torch
        os.environ.update(choose(transport.streams))
