"""The far end of a virtual Ethernet pair, by packet (linux/if_packet.h), for users who may not open TUN devices."""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct

_SOL_PACKET, _IPV4 = 263, 0x0800
_RX_RING, _VERSION, _VNET_HDR = 5, 10, 15
_TPACKET_V2 = 1
_FRAME, _FRAMES_PER_BLOCK, _BLOCKS = 68 * 1024, 15, 17  # room for 255 packets of up to 64 KiB
_BLOCK = 2**20
_VIRTIO = 10  # bytes of virtio's header before a frame


class Ring(ctypes.Structure):
    """Where packets are taken from, as the library takes it: address, bytes and numbers."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("block", ctypes.c_size_t),
        ("frame", ctypes.c_size_t),
        ("frames_per_block", ctypes.c_size_t),
        ("blocks", ctypes.c_size_t),
    )


class PacketPort:
    """An interface of the current network namespace, for taking and sending its IPv4 packets.

    They pass through a ring in shared memory, because the queue of a plain socket holds only a handful of packets and
    an ordinary user may not enlarge it.
    """

    header = _VIRTIO + 14
    """Bytes before the IP packet: virtio's and Ethernet's."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
        self._socket.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        ring = struct.pack("=4I", _BLOCK, _BLOCKS, _FRAME, _BLOCKS * _FRAMES_PER_BLOCK)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, ring)
        self._memory = mmap.mmap(self._socket.fileno(), _BLOCK * _BLOCKS)
        place = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.ring = Ring(place, _BLOCK, _FRAME, _FRAMES_PER_BLOCK, _BLOCKS)
        self._socket.bind((interface, _IPV4))

    def fileno(self) -> int:
        """The descriptor to wait on for packets, and to write them to."""
        return self._socket.fileno()
