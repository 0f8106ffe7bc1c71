"""Environment variables that the compiled transport reads, and those that make NCCL use it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bagua_bench import libraries
from bagua_bench.configuration.cell import TransportPart
from bagua_bench.transport import abi, joining

NCCL_NAME = "BaguaNet"
CHOICES = {"streams_2p": range(5), "chunk_2p": range(14, 24)}
"""What can be tuned, as binary logarithms, and to which values: 1 to 16 streams, chunks of 16 KiB to 8 MiB."""
SOON = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
"""For torch's watchdog of NCCL: when a time-out has passed, it waits four times this long, 60 s by default, before it
ends the process, so that debugging information can be written."""
_VARIABLES = {"streams_2p": ("BAGUA_NET_STREAMS", "4"), "chunk_2p": ("BAGUA_NET_CHUNK", "1048576")}


def for_nccl(streams: int | str, chunk: int | None = None) -> dict[str, str]:
    """Variables for any program that uses NCCL.

    NCCL_NET turns a plugin that cannot be loaded into an error. NCCL 2.28 and 2.29 forget a plugin when the last
    communicator goes (https://github.com/NVIDIA/nccl/issues/1978) unless they count references.
    """
    return {
        "NCCL_NET_PLUGIN": str(libraries.plugin()),
        "NCCL_NET": NCCL_NAME,
        "NCCL_NET_PLUGIN_REF_COUNT": "1",
        **_both(streams, chunk),
    }


def for_torch(streams: int | str, chunk: int | None = None, wire: str | None = None) -> dict[str, str]:
    """Variables for the torch.distributed backend.

    streams: or "auto"; chunk: bytes, None leaves it as it is; wire: as in the configuration.
    """
    return {joining.WIRE: wire or joining.EXACT, **_both(streams, chunk)}


def _both(streams: int | str, chunk: int | None) -> dict[str, str]:
    return {"BAGUA_NET_STREAMS": str(streams)} | ({} if chunk is None else {"BAGUA_NET_CHUNK": str(chunk)})


def tuned() -> dict[str, int]:
    """The keys of `CHOICES` as the environment sets them, rounded down; the default where the transport chooses."""
    found = {key: os.environ.get(*named).replace("auto", named[1]) for key, named in _VARIABLES.items()}
    return {key: int(float(value)).bit_length() - 1 for key, value in found.items()}


def of_tuned(settings: Mapping[str, int]) -> dict[str, str]:
    """Variables for settings keyed as `CHOICES`."""
    return {_VARIABLES[key][0]: str(2**value) for key, value in settings.items()}


def streams(transport: TransportPart) -> dict[str, list[dict[str, float]]] | None:
    """Counters of the NCCL plugin per comm and stream of this process; None with any other transport."""
    return abi.report_plugin() if transport.plugin else None


def apply(transport: TransportPart) -> None:
    """Prepare this process for a resolved `transport` group, before it makes its first process group."""
    if transport.backend == "nccl":
        os.environ.update({key: value for key, value in SOON.items() if key not in os.environ})
    if transport.streams is not None:
        own = transport.streams, transport.chunk
        os.environ.update(for_nccl(*own) if transport.plugin else for_torch(*own, transport.wire))
