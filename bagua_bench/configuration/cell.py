"""A cell: one fully resolved configuration in seconds, bytes and bits/s, and its identity. No torch import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from bagua_bench.configuration import plain
from bagua_bench.configuration.identity import identity


@dataclass(frozen=True)
class AlgoPart:
    """The algorithm or peer: its class, its options, and what is declared about it (`facts`)."""

    name: str
    target: str
    options: Mapping[str, Any]
    about: Mapping[str, Any] | None

    def to_plain(self) -> dict[str, Any]:
        """The keys of the group, options among them."""
        about = {} if self.about is None else {"about": plain.dump(self.about)}
        return {"name": self.name, "_target_": self.target, **plain.dump(self.options), **about}

    @classmethod
    def from_plain(cls, given: Mapping[str, Any], path: str = "algo") -> AlgoPart:
        """From the keys of the group; ValueError without a name."""
        return cls(*_component(given, ("name", "_target_", "about"), path))


@dataclass(frozen=True)
class TaskPart:
    """The task: like the algorithm, plus the time of a step where computing is emulated or simulated."""

    name: str
    target: str
    options: Mapping[str, Any]
    about: Mapping[str, Any] | None
    step_seconds: float | None
    """For one rank; None: the profile's."""

    @property
    def batch(self) -> int:
        """Samples per batch on one rank."""
        return int(self.options["batch"])

    @property
    def uneven(self) -> bool:
        """Whether its batches differ in work, between steps and between ranks."""
        return self.options.get("sampler") is not None

    @property
    def scale(self) -> str:
        """Scale of parameters and input: paper, cpu or tiny."""
        return str(self.options.get("scale", "paper"))

    def to_plain(self) -> dict[str, Any]:
        """The keys of the group, options among them."""
        about = {} if self.about is None else {"about": plain.dump(self.about)}
        own = {"name": self.name, "_target_": self.target, "step_seconds": self.step_seconds}
        return {**own, **plain.dump(self.options), **about}

    @classmethod
    def from_plain(cls, given: Mapping[str, Any], path: str = "task") -> TaskPart:
        """From the keys of the group; ValueError without a name, or if the time is not a number."""
        step = plain.load(float | None, given.get("step_seconds"), f"{path}.step_seconds")  # type: ignore[arg-type]
        return cls(*_component(given, ("name", "_target_", "about", "step_seconds"), path), step)


def _component(
    given: Mapping[str, Any], own: Sequence[str], path: str
) -> tuple[str, str, dict[str, Any], Mapping[str, Any] | None]:
    if "name" not in given:
        raise ValueError(f"{path}.name: is missing")
    options = {key: value for key, value in given.items() if key not in own}
    return given["name"], given.get("_target_") or "", options, given.get("about")


@dataclass(frozen=True)
class TransportPart:
    """What moves the bytes; `streams` is a number or `auto`."""

    name: str
    backend: str
    plugin: str | None
    streams: int | str | None
    chunk: int | None = None
    """Bytes that one stream is given at a time, at most; None: the transport's own."""
    wire: str | None = None
    """What large sums of floats travel as, `int8`, which is lossy; None: as they are."""

    @property
    def label(self) -> str:
        """Short text for people."""
        return f"{self.name} {self.wire}" if self.wire else self.name


@dataclass(frozen=True)
class ClusterPart:
    """Servers and ranks; `server` and `slow_ranks` are keyed by number, `physics` is as in the simulator's files."""

    name: str
    servers: int
    ranks_per_server: int
    server: Mapping[str, Mapping[str, float | None]]
    slow_ranks: Mapping[str, float]
    physics: Mapping[str, Any]

    @property
    def ranks(self) -> int:
        """Number of ranks on all servers."""
        return self.servers * self.ranks_per_server

    @property
    def transports(self) -> Mapping[str, Mapping[str, Any]]:
        """Physical parameters that apply to one transport only, by its name."""
        return self.physics.get("transport") or {}


@dataclass(frozen=True)
class LinkPart:
    """A link: bits/s each way (None: no limit), seconds one way, seconds, a share."""

    bandwidth: float | None
    latency: float
    jitter: float
    loss: float


@dataclass(frozen=True)
class NetworkPart:
    """The links between the servers: bits/s (None: no limit), seconds, shares, bytes."""

    name: str
    bandwidth: float | None
    latency: float
    jitter: float
    loss: float
    congestion: Literal["cubic", "bbr", "reno"]
    tcp_window: int
    flow_rates: tuple[float, ...]
    backend: Literal["auto", "netem", "link", "none"]
    software_delay: bool = False
    """Whether software on the servers adds the latency (simulated: at most the cluster's rate `shaped`)."""
    sites: int = 1
    """Groups of as many servers, each in a place of its own."""
    wan: LinkPart = LinkPart(None, 0.0, 0.0, 0.0)
    """Of every site to the others."""


@dataclass(frozen=True)
class KnownStep:
    """Seconds of a step with `batch` samples."""

    seconds: float
    batch: float


@dataclass(frozen=True)
class ComputePart:
    """The machine whose computing is emulated or simulated."""

    name: str
    step_seconds: Mapping[str, KnownStep]
    flops: float
    forward_share: float
    memory_bandwidth: float
    shrink: float
    haste: float
    optimizer: Literal["profile", "measured"]
    codec: Literal["profile", "measured"]


@dataclass(frozen=True)
class TunePart:
    """How the engine tunes itself before the timed steps."""

    max_samples: int
    sample_steps: int
    warmup_steps: int
    advised: int = 0
    """How many settings the simulator proposes."""
    first: tuple[Mapping[str, int], ...] = ()
    """Which ones, once they are known."""


@dataclass(frozen=True)
class Outage:
    """A server is lost when a step is done, and comes back after another one (None: never)."""

    server: int
    step: int
    back: int | None = None


@dataclass(frozen=True)
class ElasticPart:
    """How a run survives the loss of ranks and servers."""

    every: int
    """Steps from one checkpoint to the next."""
    keep: int
    servers: int
    """With fewer it waits."""
    restarts: int
    regroup: bool
    """Whether those that are left go on without a restart."""
    folder: str | None
    """Of the checkpoints; None: a temporary one."""
    outages: tuple[Outage, ...]


@dataclass(frozen=True)
class RunPart:
    """How the cell is run."""

    steps: int
    untimed: int
    warmup: int
    seed: int
    device: Literal["cpu", "cuda"]
    precision: Literal["fp32", "bf16", "fp16"]
    overlap: bool
    bucket_size: int | None
    """Bytes; None: chosen by what collectives cost."""
    channels: int | None
    """Buckets under way at a time; None: the transport's default."""
    find_unused_parameters: bool
    accumulate: int
    timeout: float
    evaluate: bool
    results: str
    autotune: TunePart | None = None
    """None: it does not."""
    fused_optimizer: bool | None = None
    """True: the task's optimizer takes its steps through `fuse`; None: as it is."""
    elastic: ElasticPart | None = None
    """None: it ends with the first rank that is lost."""
    trace: bool | None = None
    """True: what every rank does when is noted; None: it is not."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One experiment. Functions take the part that they need."""

    mode: Literal["measure", "emulate", "simulate"]
    task: TaskPart
    algo: AlgoPart
    transport: TransportPart
    cluster: ClusterPart
    network: NetworkPart
    compute: ComputePart | None = None
    """None where computing is real."""
    run: RunPart

    @cached_property
    def id(self) -> str:
        """Hash of the configuration; cells with equal ids are the same experiment."""
        return identity(self.to_json())

    @property
    def profile(self) -> ComputePart:
        """The machine whose computing is emulated or simulated."""
        assert self.compute is not None, "computing is real"
        return self.compute

    @property
    def shrink(self) -> float:
        """How many times smaller the run is than the configuration says; 1 where computing is real."""
        return 1.0 if self.mode == "measure" or self.compute is None else self.compute.shrink

    @property
    def haste(self) -> float:
        """How many times quicker the run is than the configuration says; 1 where computing is real."""
        return 1.0 if self.mode == "measure" or self.compute is None else self.compute.haste

    @property
    def label(self) -> str:
        """Short text for people."""
        return f"{self.task.name} {self.algo.name} over {self.transport.label}, {self.cluster.ranks} ranks"

    def to_json(self) -> dict[str, Any]:
        """Plain values, as a record keeps them."""
        found: dict[str, Any] = plain.dump(self)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Cell:
        """The cell that `to_json` wrote. ValueError, one line, for a missing or unknown key or a wrong type."""
        return plain.load(cls, given)


@dataclass(frozen=True)
class Job:
    """One run of a cell."""

    cell: Cell
    round: int
    undisturbed: bool = False
    """Whether it counts as done only if nothing else kept the machine busy meanwhile."""
