"""The configuration: schema of the groups that the suite owns, and the step from Hydra's tree to plain values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from bagua_bench import conf_folder, facts, owner, plain, units
from bagua_bench.cell import AlgoPart, Cell, ComputePart, RunPart, TaskPart, TransportPart
from bagua_bench.network import settings

CONF = conf_folder.FOLDER
GROUPS = ("task", "algo", "transport", "cluster", "network")
SCALES = ("paper", "cpu", "tiny")


class Mode(Enum):
    """What is real (docs/design.md, Three modes, one code path)."""

    measure = "measure"
    emulate = "emulate"
    simulate = "simulate"


class Origin(Enum):
    """Whose time the optimizer, or codecs and an algorithm's other arithmetic, takes in `mode=emulate`.

    The profile's, or this machine's for doing it.
    """

    profile = "profile"
    measured = "measured"


class Backend(Enum):
    """What shapes an emulated network: auto is netem where the kernel has it, else link; none leaves it as it is."""

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
    """Of forward and loss: bf16 and fp16 are torch's autocast, fp16 with loss scaling; all else stays float32."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


@dataclass
class Run:
    """How a cell is run. Times and sizes are texts with units."""

    steps: int = 20  # timed ...
    untimed: int = 0  # ... after so many that count for learning only
    warmup: int = 3  # at least so many before both, undone afterwards
    seed: int = 0
    device: Device = Device.auto
    precision: Precision = Precision.fp32
    overlap: bool = True
    bucket_size: str = "10MiB"
    find_unused_parameters: bool = False
    accumulate: int = 1
    timeout: str = "60s"
    evaluate: bool = True
    results: str = "results"


@dataclass
class Transport:
    """What moves the bytes: a backend of torch.distributed.

    `plugin` is NCCL's network plugin (bagua_net, or null for NCCL's own sockets), `streams` the TCP connections that
    bagua_net uses between two ranks.
    """

    backend: str = "gloo"
    plugin: Optional[str] = None  # noqa: UP045  OmegaConf reads it
    streams: Optional[int] = None  # noqa: UP045


def _open_mapping() -> Any:
    """A mapping that takes any key from the command line; what is allowed is checked later."""
    return DictConfig({}, flags={"struct": False})


@dataclass
class Cluster:
    """Servers and the ranks on each. Ranks of one server are consecutive.

    `server` gives single servers another link (cluster.server.2.bandwidth=100mbit), `slow_ranks` single ranks a factor
    on their compute time (cluster.slow_ranks.3=1.5); both count from 0. `physics`: for the simulator.
    """

    servers: int = 2
    ranks_per_server: int = 1
    server: Any = field(default_factory=_open_mapping)
    slow_ranks: Any = field(default_factory=_open_mapping)
    physics: Any = field(default_factory=_open_mapping)


@dataclass
class Network:
    """The links between the servers, one per server. Rates, times and sizes are texts with units."""

    bandwidth: Optional[str] = None  # noqa: UP045  OmegaConf reads it
    latency: str = "0ms"
    jitter: str = "0ms"
    loss: str = "0%"
    congestion: Congestion = Congestion.cubic
    tcp_window: str = "4MiB"
    flow_rates: list[str] = field(default_factory=list)  # limits of single TCP connections of a server, in turns
    backend: Backend = Backend.auto


@dataclass
class Compute:
    """The machine whose computing is emulated or simulated; `conf/compute/v100.yaml` explains the keys."""

    step_seconds: Any = field(default_factory=dict)
    flops: float = 8.4e12
    forward_share: float = 1 / 3
    memory_bandwidth: str = "675GB"
    shrink: float = 1.0  # tensors are so many times smaller: a scale model
    optimizer: Origin = Origin.profile
    codec: Origin = Origin.profile


@dataclass
class Campaign:
    """Cells = every combination of points of the `axes`, each composed with `overrides` (KEY=VALUE).

    An axis is a text KEY=A,B,C or a list of points, each a text of one or more KEY=VALUE.
    """

    rounds: int = 5
    overrides: list[str] = field(default_factory=list)
    axes: list[Any] = field(default_factory=list)
    figure: str = "throughput"
    dry_run: bool = False  # show the cells and how long they will take, and stop


@dataclass
class Config:
    """Everything; `task` and `algo` hold the constructor arguments of their `_target_`."""

    mode: Mode = Mode.measure
    task: Any = None
    algo: Any = None
    transport: Transport = field(default_factory=Transport)
    cluster: Cluster = field(default_factory=Cluster)
    network: Network = field(default_factory=Network)
    compute: Compute = field(default_factory=Compute)
    run: Run = field(default_factory=Run)
    campaign: Optional[Campaign] = None  # noqa: UP045  OmegaConf reads it
    debug: Any = None


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line for the user."""


def register() -> None:
    """Tell Hydra the schema and OmegaConf the resolvers used in conf/."""
    ConfigStore.instance().store("schema", Config)
    OmegaConf.register_new_resolver("default_scale", _default_scale, replace=True)
    OmegaConf.register_new_resolver("by_scale", _by_scale, replace=True)
    OmegaConf.register_new_resolver("default_transport", _default_transport, replace=True)
    OmegaConf.register_new_resolver("scratch", _scratch, replace=True)
    facts.register_resolvers()


_scratch_folder = cache(owner.folder)


def _scratch() -> str:
    """A folder for what Hydra writes during a multirun; it goes with the process."""
    return _scratch_folder().name


def _default_scale(*, _root_: DictConfig) -> str:
    on_gpu = has_cuda() and _root_.transport.backend == "nccl"
    return "paper" if _root_.mode != Mode.measure or on_gpu else "cpu"


def _default_transport() -> str:
    return "nccl" if has_cuda() else "gloo"


def _by_scale(*values: Any, _parent_: DictConfig) -> Any:
    """The value for the task's scale; a wrong scale is reported by `validate`."""
    return values[SCALES.index(_parent_.scale) if _parent_.scale in SCALES else 0]


def has_cuda() -> bool:
    """Whether this process sees an NVIDIA GPU and the installed torch is a CUDA build (found without importing it)."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    try:
        library = distribution("torch").locate_file("torch/lib/libtorch_cuda.so")
    except PackageNotFoundError:
        return False
    devices = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg")]  # the latter in Windows' Linux
    return Path(str(library)).exists() and bool(devices)


def resolve(config: DictConfig, choices: dict[str, str]) -> Cell:
    """The cell in plain units; `choices` names the option of each group. ConfigError if a value does not parse."""
    given = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    assert isinstance(given, dict)
    groups = {group: {"name": choices[group], **(given[group] or {})} for group in GROUPS}
    try:
        network, cluster = settings.parts(groups["network"], groups["cluster"])
        transport = plain.load(TransportPart, groups["transport"], "transport")
        cell = Cell(
            mode=given["mode"],
            task=TaskPart.from_plain(groups["task"]),
            algo=AlgoPart.from_plain(groups["algo"]),
            transport=transport,
            cluster=cluster,
            network=network,
            compute=_compute(choices["compute"], given["compute"]) if given["mode"] != "measure" else None,
            run=_run(given["run"], transport.backend),
        )
        facts.algorithm(cell.algo), facts.task(cell.task)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return cell


def _compute(name: str, given: dict[str, Any]) -> ComputePart:
    bandwidth = units.parse("compute.memory_bandwidth", given["memory_bandwidth"], units.BYTES)
    return plain.load(ComputePart, {"name": name, **given, "memory_bandwidth": bandwidth}, "compute")


def _run(given: dict[str, Any], backend: str) -> RunPart:
    own: dict[str, float | str] = {
        "bucket_size": int(units.parse("run.bucket_size", given["bucket_size"], units.BYTES)),
        "timeout": units.parse("run.timeout", given["timeout"], units.SECONDS),
    }
    if given["device"] == "auto":
        own["device"] = "cuda" if has_cuda() and backend == "nccl" else "cpu"
    return plain.load(RunPart, {**given, **own}, "run")
