"""What the harness's library takes and gives, for ctypes. It imports nothing of the suite: see worker.py."""

from __future__ import annotations

import ctypes
from typing import Any


class Plan(ctypes.Structure):
    """See native/drive.h."""

    _fields_ = (
        ("size", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("window", ctypes.c_int32),
        ("idle", ctypes.c_int32),
        ("check", ctypes.c_int32),
        ("patience", ctypes.c_double),
    )


class Outcome(ctypes.Structure):
    """See native/drive.h."""

    _fields_ = (
        ("result", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
        ("messages", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("cpu", ctypes.c_double),
        ("median", ctypes.c_double),
        ("p99", ctypes.c_double),
    )


class StreamReport(ctypes.Structure):
    """See report.h of the transport."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("bytes_sent", "chunks_sent", "bytes_received", "chunks_received")),
        *((name, ctypes.c_uint64) for name in ("stalls", "parked", "queued", "queued_max", "retransmissions")),
        *((name, ctypes.c_uint64) for name in ("bytes_zero_copy", "in_use")),
        *((name, ctypes.c_double) for name in ("rate", "delivery_rate", "rtt", "min_rtt")),
    )


class Facts(ctypes.Structure):
    """See native/net.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("speed", ctypes.c_int),
        ("maxComms", ctypes.c_int),
        ("maxRecvs", ctypes.c_int),
        ("ptrSupport", ctypes.c_int),
        ("devices", ctypes.c_int),
        ("maxP2pBytes", ctypes.c_uint64),
    )


def values(structure: ctypes.Structure) -> dict[str, Any]:
    """Its fields by their names."""
    found = {name: getattr(structure, name) for name, *_ in structure._fields_}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}


def plan_of(given: dict[str, Any]) -> Plan:
    """From some of its fields; the others have their usual values."""
    return Plan(**{"window": 1, "idle": 20, "check": 0, "patience": 30.0, **given})
