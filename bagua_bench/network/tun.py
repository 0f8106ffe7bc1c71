"""TUN devices that carry packets of up to 64 KiB (linux/if_tun.h)."""

from __future__ import annotations

import fcntl
import os
import struct

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM_TSO4_TSO6 = 1 | 2 | 4
_DEVICE = "/dev/net/tun"


class Tun:
    """The other side of a TUN interface of the current network namespace.

    The kernel leaves checksums and segmentation to the reader.
    """

    header = 10
    """Bytes before the IP packet: virtio's header."""
    ring = None

    def __init__(self, interface: str) -> None:
        self._descriptor = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(self._descriptor, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), flags))
        fcntl.ioctl(self._descriptor, _TUNSETOFFLOAD, _CHECKSUM_TSO4_TSO6)

    def fileno(self) -> int:
        """The descriptor to read packets with their headers from, and to write them to."""
        return self._descriptor
