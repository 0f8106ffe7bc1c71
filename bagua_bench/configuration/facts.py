"""Facts that algorithms, peers and tasks declare in the key `about` of their YAML. No torch import.

Consumers read these facts instead of guessing from the names of keys or classes. A contract test measures each fact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import AlgoPart, ClusterPart, TaskPart
from bagua_bench.configuration.variants import algorithm_part, register_resolvers
from bagua_bench.sources.signature import attributes

_RESERVE = ("#17becf", "#bcbd22", "#393b79", "#637939", "#8c6d31", "#843c39", "#7b4173", "#3182bd")
_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class AlgorithmFacts:
    """Facts about an algorithm or a peer with the options that a configuration gives it."""

    title: str
    """Its name for people."""
    same_update: bool
    """Whether an SGD step is DDP's up to rounding: it uses the mean of all gradients."""
    period: int = 1
    """Steps after which its traffic repeats."""
    warm_up: int = 0
    """Initial steps in which it is gradient all-reduce."""
    warm_up_share: float = 0.0
    """Share of a training run that its warm-up should take."""
    warm_up_of_one: tuple[str, ...] = ()
    """Options with which the warm-up takes one step."""
    rounds: int = 0
    """0: it communicates in steps. Otherwise it averages in rounds alongside them, at least so many in a timed run."""
    by_server: bool = False
    """Whether it exchanges between servers only, after a sum inside each."""
    compare: tuple[tuple[str, ...], ...] = ((),)
    """Options worth comparing where servers have several ranks."""
    search: tuple[tuple[str, ...], ...] = ((),)
    """Options that change nothing but its speed, worth trying; its own come first."""
    tolerance: float = 1e-4
    """Largest relative distance of float32 weights between short runs that only round sums differently."""
    skips_steps: bool = True
    """Whether a step can be skipped after communication (an overflow under fp16) without leaving a trace."""
    regroups: bool = False
    """Whether ranks that are left can go on without a restart when one is lost: replicas may differ, and all state may
    begin anew."""
    needs_shapes: bool = False
    """Whether it depends on the shapes of parameters; a scale model has flat tensors and says nothing about it."""
    buckets: str = ""
    """What it sends together where run.bucket_size does not decide; empty where it does."""
    line_share: float = 1.0
    """Its class's own (`Algorithm.line_share`)."""
    state: float = 0.0
    """Bytes that a rank keeps besides weights, gradients and optimizer, over those of the weights."""
    state_shared: float = 0.0
    """The same of what all ranks keep a part of each, over the weights' and summed over the ranks."""
    serving: int = 0
    """Servers of the cluster, the last ones, whose ranks only serve the others and take no batches."""
    in_bytes: tuple[str, ...] = ()
    """Options in bytes (or MiB), which are smaller in a scale model."""
    in_time: tuple[str, ...] = ()
    """Options in milliseconds, or texts with a unit of time, which are shorter in a scale model of time."""
    modes: tuple[str, ...] = ("measure", "emulate", "simulate")
    """Modes it can be run in."""
    peer: bool = False
    """Whether it is a system of its own instead of an algorithm of the engine."""
    baseline: bool = False
    """Whether the others are compared with it."""
    variant_of: str = ""
    """The option of which it is a setting that its users can switch on, and which is told beside it."""
    advised: bool = True
    """Whether advice ranks it. Reproductions of published code are only there for comparison."""
    note: str = ""
    """A caveat to show wherever its speed is advised."""
    learned: tuple[float, ...] = ()
    """What `campaign=learning` ended with, % of held-out digits: mean, least and most over its seeds."""
    short: Mapping[str, Any] = field(default_factory=dict)
    """Options with which a few steps show what it does."""
    colour: str = ""
    marker: str = ""

    group: ClassVar[str] = "algo"

    def state_bytes(self, weights: float, ranks: int) -> float:
        """Bytes of state that a rank of a flat job keeps with so many bytes of weights."""
        return weights * (self.state + self.state_shared / ranks)

    def workers(self, cluster: ClusterPart) -> int:
        """How many ranks of a cluster take batches; they are the first ones."""
        return (cluster.servers - self.serving) * cluster.ranks_per_server

    def whole(self, steps: int) -> int:
        """`steps` rounded up to whole periods, because a mean over part of a period says nothing."""
        return -(-steps // self.period) * self.period


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a task."""

    title: str
    """Its name for people."""
    layers: bool = True
    """Whether its parameters belong to layers, whose time can be emulated or simulated."""
    modes: tuple[str, ...] = ("measure", "emulate", "simulate")
    """Modes it can be run in."""
    described: bool = False
    """Whether it is a model without data, which its options `parameters` or `model` describe."""
    epoch: int = 0
    """Samples per epoch in the published runs; 0: those of the task's own data."""
    elastic: bool = False
    """Whether it can begin in mid-epoch (`Task.resumed`), unless its batches differ in work."""

    group: ClassVar[str] = "task"


Facts = TypeVar("Facts", AlgorithmFacts, TaskFacts)


def algorithm(algo: AlgoPart) -> AlgorithmFacts:
    """The facts about a cell's algorithm. ValueError if the declaration is invalid."""
    return _algorithm(algo.name, algo.target, json.dumps(algo.about, sort_keys=True))


@cache
def _algorithm(name: str, target: str, about: str) -> AlgorithmFacts:
    given = json.loads(about)
    own = _read(AlgorithmFacts, name, given)
    if "line_share" in given:
        where = f"conf/algo/{name}.yaml: about.line_share={given['line_share']}"
        raise ValueError(f"{where}: belongs in the class, as an attribute of it")
    known = attributes(target) if target else {}
    fixed: dict[str, Any] = {"buckets": "one"} if known.get("one_bucket") and not own.buckets else {}
    fixed |= {"line_share": known["line_share"]} if "line_share" in known else {}
    number = sum(map(ord, name))  # arbitrary, but always the same
    looks = {"colour": _RESERVE[number % len(_RESERVE)], "marker": _MARKERS[number % len(_MARKERS)]}
    return _read(AlgorithmFacts, name, {**looks, **given, **fixed})


@cache
def option(name: str) -> AlgorithmFacts:
    """The facts about algo=NAME with its own options; only a title and looks if the name has no file."""
    if not (conf_folder.FOLDER / "algo" / f"{name}.yaml").exists():
        return _algorithm(name, "", json.dumps({"title": name, "same_update": False}))
    return algorithm(algorithm_part(name))


@cache
def baseline() -> str:
    """The option of the group algo that the others are compared with."""
    names = conf_folder.names("algo")
    return next(name for name in names if option(name).baseline)


def declared(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an old record, unchanged, plus what its algorithm and its task declare today."""
    from omegaconf import OmegaConf

    register_resolvers()
    found = dict(config)
    for group, empty in (("algo", {"title": config["algo"]["name"], "same_update": False}), ("task", {"title": ""})):
        name = config[group]["name"]
        known = (conf_folder.FOLDER / group / f"{name}.yaml").exists()
        own = conf_folder.option(group, name) if known else {"about": empty}
        whole = OmegaConf.create({group: OmegaConf.merge(own, config[group])})  # it may be older than some option
        about = OmegaConf.to_container(OmegaConf.select(whole, f"{group}.about"), resolve=True)
        found[group] = {**config[group], "about": about}
    return found


def task(task: TaskPart) -> TaskFacts:
    """The facts about a cell's task. ValueError if the declaration is invalid."""
    return _read(TaskFacts, task.name, task.about)


@cache
def task_option(name: str) -> TaskFacts:
    """The facts about task=NAME. ValueError if the declaration is invalid."""
    return _read(TaskFacts, name, conf_folder.option("task", name).get("about"))


def equal_replicas(algo: AlgoPart) -> bool:
    """Whether all ranks have the same weights after every step: the algorithm's own `consensus` is 0."""
    return not attributes(algo.target).get("consensus")


def once_per_process(algo: AlgoPart) -> bool:
    """Whether processes that have run it can run it no second time."""
    return bool(attributes(algo.target).get("once_per_process"))


def absent(algo: AlgoPart) -> str | None:
    """What is not installed here and is needed to run the algorithm, and how to install it; None if nothing."""
    found = attributes(algo.target)
    package = found.get("package")
    if package is None or find_spec(package) is not None:
        return None
    return f"algo={algo.name}: needs {package}, which is not installed: {found['install']}"


def _read(kind: type[Facts], name: str, about: Any) -> Facts:
    """The facts in an `about`. ValueError, one line, for a missing or unknown key or a wrong type."""
    path = f"conf/{kind.group}/{name}.yaml"
    if not isinstance(about, Mapping):
        raise ValueError(f"{path}: about: is missing; it declares what {kind.group}={name} is ({_names(kind)})")
    known = {f.name: f for f in fields(kind)}
    for key, value in about.items():
        if key not in known:
            raise ValueError(f"{path}: about.{key}={value}: no such key; allowed: {_names(kind)}")
        wanted = _PLAIN.get(str(known[key].type))
        if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise ValueError(f"{path}: about.{key}={value}: expected {known[key].type}")
    for f in fields(kind):
        if f.name not in about and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{path}: about.{f.name} is missing")
    return kind(**{key: _frozen(value) for key, value in about.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _names(kind: Any) -> str:
    return ", ".join(f.name for f in fields(kind))
