"""The far end of a virtual Ethernet pair, by packet (linux/if_packet.h), for users who may not open TUN devices."""

from __future__ import annotations

import mmap
import socket
import struct

_SOL_PACKET, _IPV4 = 263, 0x0800
_RX_RING, _STATISTICS, _VERSION, _VNET_HDR = 5, 6, 10, 15
_TPACKET_V2 = 1
_FRAME, _FRAMES_PER_BLOCK, _BLOCKS = 68 * 1024, 15, 17  # room for 255 packets of up to 64 KiB
_BLOCK = 2**20
_STATUS = struct.Struct("=I")
_HEADER = struct.Struct("=8xIH")  # of tpacket2_hdr: length captured, where the frame begins
_KERNEL = 0  # status of a slot that waits for a packet
_VIRTIO = 10  # bytes of virtio's header before a frame


class PacketPort:
    """An interface of the current network namespace: takes and sends its IPv4 packets.

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
        self._ring = mmap.mmap(self._socket.fileno(), _BLOCK * _BLOCKS)
        self._socket.bind((interface, _IPV4))
        self._next, self._drops = 0, 0

    def fileno(self) -> int:
        """The descriptor to wait on for packets."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """The next packet with its header; BlockingIOError if there is none."""
        block, number = divmod(self._next, _FRAMES_PER_BLOCK)
        place = block * _BLOCK + number * _FRAME
        if _STATUS.unpack_from(self._ring, place)[0] == _KERNEL:
            raise BlockingIOError
        length, begin = _HEADER.unpack_from(self._ring, place)
        begin += place
        packet = self._ring[begin - _VIRTIO : begin + length]
        _STATUS.pack_into(self._ring, place, _KERNEL)
        self._next = (self._next + 1) % (_BLOCKS * _FRAMES_PER_BLOCK)
        return packet

    def write(self, packet: bytes) -> None:
        """Send a packet with its header; BlockingIOError if the queue is full."""
        self._socket.send(packet)

    def drops(self) -> int:
        """Number of packets so far that came faster than they were read."""
        self._drops += struct.unpack("=2I", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))[1]
        return self._drops
