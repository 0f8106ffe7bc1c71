"""TUN devices that carry packets of up to 64 KiB (linux/if_tun.h)."""

from __future__ import annotations

import fcntl
import os
import struct

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM_TSO4_TSO6 = 1 | 2 | 4
DEVICE = "/dev/net/tun"
HEADER = 10
"""Bytes of the virtio header before every packet."""
LONGEST = 70_000
"""Bytes to read a packet into."""


def open_tun(interface: str, offload: bool) -> int:
    """Descriptor, not blocking, of an existing TUN interface of the current network namespace.

    With `offload`, the kernel leaves checksums and segmentation to whoever reads.
    """
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUM_TSO4_TSO6 if offload else 0)
    return descriptor
