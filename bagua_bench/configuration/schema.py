"""The keys that a configuration may have: the groups that the suite owns, as Hydra reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

from omegaconf import DictConfig

GROUPS = ("task", "algo", "transport", "cluster", "network")
SCALES = ("paper", "cpu", "tiny")


class Mode(Enum):
    """What is real (docs/design.md, Three modes, one code path)."""

    measure = "measure"
    emulate = "emulate"
    simulate = "simulate"


class Origin(Enum):
    """Where the time of the optimizer, or of codecs and an algorithm's other arithmetic, comes from in `mode=emulate`.

    profile: from the compute profile; measured: from doing the work on this machine.
    """

    profile = "profile"
    measured = "measured"


class Backend(Enum):
    """What shapes an emulated network: auto is netem if the kernel has it, otherwise link; none shapes nothing."""

    auto = "auto"
    netem = "netem"
    link = "link"
    none = "none"


class Congestion(Enum):
    """TCP congestion control of the emulated servers."""

    cubic = "cubic"
    bbr = "bbr"
    reno = "reno"


class Device(Enum):
    """Where the ranks compute: auto is cuda where torch and the machine have it and the transport is NCCL."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """Precision of forward and loss: bf16 and fp16 use torch's autocast, fp16 scales the loss; all else is float32."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


@dataclass
class RunKeys:
    """How a cell is run. Times and sizes are texts with units."""

    steps: int = 20  # timed
    untimed: int = 0  # before the timed ones, for learning only
    warmup: int = 3  # at least this many before both, undone afterwards
    seed: int = 0
    device: Device = Device.auto
    precision: Precision = Precision.fp32
    overlap: bool = True
    bucket_size: Optional[str] = None  # noqa: UP045  OmegaConf reads it; null: by what collectives cost
    channels: Optional[int] = None  # noqa: UP045  buckets under way at a time; null: 4, over NCCL 1
    find_unused_parameters: bool = False
    accumulate: int = 1
    timeout: str = "60s"
    evaluate: bool = True
    results: str = "results"
    autotune: bool = False  # before the timed steps; undone afterwards, as the warm-up
    fused_optimizer: bool = False  # small parameters are updated many at a time
    elastic: bool = False  # goes on from a checkpoint with the servers that are left
    trace: bool = False  # a file that shows what every rank did when


@dataclass
class TuneKeys:
    """How `run.autotune` tunes: so many settings, each for so many steps, behind some that are not counted."""

    max_samples: int = 30
    sample_steps: int = 5
    warmup_steps: int = 5
    advised: int = 0  # of the settings are proposed by the simulator, behind what the engine has


@dataclass
class ElasticKeys:
    """How a run with `run.elastic` survives the loss of a rank or a server.

    `outages` takes servers away: '1@20' kills server 1 when step 20 is done, '1@20-50' also brings it back at step 50.
    """

    every: int = 10  # steps from one checkpoint to the next
    keep: int = 2  # checkpoints
    servers: int = 1  # with fewer it fails
    restarts: int = 3  # of one server's ranks, after failures
    regroup: bool = False  # go on without a restart where the algorithm can
    folder: Optional[str] = None  # noqa: UP045  of the checkpoints; null: a temporary one
    outages: list[str] = field(default_factory=list)


@dataclass
class TransportKeys:
    """What moves the bytes: a backend of torch.distributed.

    `plugin` is NCCL's network plugin (bagua_net, or null for NCCL's own sockets), `streams` the TCP connections that
    bagua_net uses between two ranks (auto: by the round trip), `chunk` the most bytes that it gives one of them at
    a time (null: 1 MiB), `wire` what large sums of floats travel as (int8, which is lossy; null: as they are).
    """

    backend: str = "gloo"
    plugin: Optional[str] = None  # noqa: UP045  OmegaConf reads it
    streams: Optional[str] = None  # noqa: UP045
    chunk: Optional[str] = None  # noqa: UP045
    wire: Optional[str] = None  # noqa: UP045


def _open_mapping() -> Any:
    """A mapping that takes any key from the command line; what is allowed is checked later."""
    return DictConfig({}, flags={"struct": False})


@dataclass
class ClusterKeys:
    """Servers and the ranks on each. Ranks of one server are consecutive.

    `server` gives single servers another link (cluster.server.2.bandwidth=100mbit), `slow_ranks` single ranks a factor
    on their compute time (cluster.slow_ranks.3=1.5); both count from 0. `physics` holds parameters of the simulator.
    """

    servers: int = 2
    ranks_per_server: int = 1
    server: Any = field(default_factory=_open_mapping)
    slow_ranks: Any = field(default_factory=_open_mapping)
    physics: Any = field(default_factory=_open_mapping)


@dataclass
class LinkKeys:
    """A link. Rates and times are texts with units."""

    bandwidth: Optional[str] = None  # noqa: UP045  OmegaConf reads it
    latency: str = "0ms"
    jitter: str = "0ms"
    loss: str = "0%"


@dataclass
class NetworkKeys(LinkKeys):
    """The links between the servers, one per server, and of every site to the others (`wan`). Sizes have units, too."""

    congestion: Congestion = Congestion.cubic
    tcp_window: str = "4MiB"
    flow_rates: list[str] = field(default_factory=list)  # limits of a server's single TCP connections, in turn
    backend: Backend = Backend.auto
    software_delay: bool = False  # simulated: the latency is added by software, such as tc netem on the servers
    sites: int = 1  # groups of as many servers; servers of one group are consecutive
    wan: LinkKeys = field(default_factory=LinkKeys)


@dataclass
class ComputeKeys:
    """The machine whose computing is emulated or simulated; `conf/compute/v100.yaml` explains the keys."""

    step_seconds: Any = field(default_factory=dict)
    flops: float = 8.4e12
    forward_share: float = 1 / 3
    memory_bandwidth: str = "675GB"
    shrink: float = 1.0  # scale model: tensors are this many times smaller
    haste: float = 1.0  # scale model: computing, latency and transfers are this many times quicker; below 1 slower
    optimizer: Origin = Origin.profile
    codec: Origin = Origin.profile


@dataclass
class CampaignKeys:
    """Cells = every combination of points of the `axes`, each composed with `overrides` (KEY=VALUE).

    An axis is a text KEY=A,B,C or a list of points, each a text of one or more KEY=VALUE.
    """

    rounds: int = 5
    overrides: list[str] = field(default_factory=list)
    axes: list[Any] = field(default_factory=list)
    figure: str = "throughput"
    only: Optional[str] = None  # noqa: UP045  those with these settings, KEY=VALUE,VALUE ...
    undisturbed: bool = False  # run again what other processes of the machine have disturbed
    dry_run: bool = False  # show the cells and how long they will take, and stop


@dataclass
class Config:
    """Everything; `task` and `algo` hold the constructor arguments of their `_target_`."""

    mode: Mode = Mode.measure
    task: Any = None
    algo: Any = None
    transport: TransportKeys = field(default_factory=TransportKeys)
    cluster: ClusterKeys = field(default_factory=ClusterKeys)
    network: NetworkKeys = field(default_factory=NetworkKeys)
    compute: ComputeKeys = field(default_factory=ComputeKeys)
    run: RunKeys = field(default_factory=RunKeys)
    tune: TuneKeys = field(default_factory=TuneKeys)
    elastic: ElasticKeys = field(default_factory=ElasticKeys)
    campaign: Optional[CampaignKeys] = None  # noqa: UP045  OmegaConf reads it
    debug: Any = None
