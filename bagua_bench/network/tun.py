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
_LONGEST = 70_000  # bytes to read a packet into


class Tun:
    """The other side of a TUN interface of the current network namespace.

    The kernel leaves checksums and segmentation to the reader.
    """

    header = 10
    """Bytes before the IP packet: virtio's header."""

    def __init__(self, interface: str) -> None:
        self._descriptor = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(self._descriptor, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), flags))
        fcntl.ioctl(self._descriptor, _TUNSETOFFLOAD, _CHECKSUM_TSO4_TSO6)

    def fileno(self) -> int:
        """The descriptor to wait on for packets."""
        return self._descriptor

    def read(self) -> bytes:
        """The next packet with its header; BlockingIOError if there is none."""
        return os.read(self._descriptor, _LONGEST)

    def write(self, packet: bytes) -> None:
        """Send a packet with its header; BlockingIOError if the queue is full."""
        os.write(self._descriptor, packet)

    def drops(self) -> int:
        """Number of packets that came faster than they were read: none, as the interface has a queue that stops TCP."""
        return 0
