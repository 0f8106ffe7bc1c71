"""What one rank does in a step, as recorded from the engine: the input of the virtual clock. No torch import."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Phase:
    """The training thread enters a phase of the step."""

    name: str


@dataclass(frozen=True)
class Work:
    """Compute for a share of a pass; `optimizer` is one with share 1."""

    phase: str
    share: float


@dataclass(frozen=True)
class Traffic:
    """Arithmetic bound by the memory: bytes read and written."""

    nbytes: float


@dataclass(frozen=True)
class Collective:
    """A call of the communicator: bytes of its tensor, the ranks that take part, and offsets of the peers."""

    kind: str
    nbytes: int
    level: str  # "flat", "intra", "inter"
    offsets: tuple[int, ...] = ()
    group: tuple[int, int] | None = None
    """Number of servers, and of ranks on each, if only some take part."""
    packs: int = 0
    """Bytes of floats that travel as the `nbytes` of 8-bit integers; 0: the tensor travels as it is."""


Operation = Traffic | Collective


@dataclass(frozen=True)
class Submit:
    """Hand work to a channel, which does it in order; work with the same key goes through the same one."""

    ops: tuple[Operation, ...]
    key: int = 0


@dataclass(frozen=True)
class Ready:
    """A gradient is complete; the peer's own rules decide when it is sent."""

    nbytes: int


@dataclass(frozen=True)
class Wait:
    """Wait until all but the last `behind` pieces of work are done."""

    behind: int = 0


@dataclass(frozen=True)
class Gate:
    """The training thread begins (or ends) the part of a step in which no round may change the weights."""

    begins: bool


Item = Phase | Work | Traffic | Submit | Ready | Wait | Gate
Step = tuple[Item, ...]


@dataclass(frozen=True)
class Round:
    """One round of an algorithm that runs ASYNC; `pause` seconds lie between rounds."""

    before: tuple[Operation, ...]
    """Negotiation and snapshot."""
    exchange: tuple[Operation, ...]
    apply: tuple[Operation, ...]
    pause: float


@dataclass(frozen=True)
class Fusion:
    """Horovod's schedule: every `cycle` seconds it fuses the ready gradients, up to `threshold` bytes per message."""

    cycle: float
    threshold: int


@dataclass(frozen=True)
class Program:
    """Steps as recorded, the bytes each kind of rank sends in a step, and how many ranks of the kind there are."""

    steps: tuple[Step, ...]
    sent: tuple[dict[str, float], ...]
    counts: tuple[int, ...]
    round: Round | None = None
    fusion: Fusion | None = None
    buckets: int = 0
    """Number of the engine's buckets; 0 for peers."""
    channels: int = 1
    """How many lanes the engine has; those of peers belong to the transport."""
    asynchronous: bool = False
    """Collectives are handed to the transport as they become ready, and it may run several at a time."""
    sent_per_round: tuple[dict[str, float], ...] = field(default=())
