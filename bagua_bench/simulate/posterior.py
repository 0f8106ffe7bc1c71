"""What a fit knows besides its values: how sure it is of them, and where its points lay. No torch import."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bagua_bench.configuration import units
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.physics import Physics, nearest
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.scale import scale_model

_NINE_OF_TEN = 1.645  # standard deviations on both sides of the mean that nine of ten normal values lie within
UNSEEN = 0.1
"""Relative error that the model has besides, under conditions that no point had, where none were measured: assumed."""
_BEYOND = 1.25  # times as far as the points lie
_SPANS = {"network.latency": 5e-3, "network.jitter": 5e-3, "network.loss": 1e-2}
"""Up to where points that are all 0 count as lying, when distances are measured: assumed."""

Steps = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Posterior:
    """Uncertainty of a cluster's fitted parameters, and the range of settings that they were fitted to.

    steps: for each parameter (NAME, or TRANSPORT.NAME) one factor on its value per independent direction: where the
    parameters together are one standard deviation away. domain: the least and the greatest value of each setting.
    names: those that points had, of each setting that has names. unseen: the relative error that the model has besides
    under conditions that no point had. error_of: where the fit's points were too few to tell the model's own error, the
    cluster whose points it was taken from, or empty if it is assumed.
    """

    steps: Steps
    domain: Mapping[str, tuple[float, float]]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: float = UNSEEN
    error_of: str | None = None

    def over(self, other: Posterior) -> Posterior:
        """This posterior of some parameters, with what another fit knows of the rest."""
        own, rest = (max(map(len, each.values()), default=0) for each in (self.steps, other.steps))
        known = {key: (*(1.0,) * own, *factors) for key, factors in other.steps.items()}
        steps = {**known, **{key: (*factors, *(1.0,) * rest) for key, factors in self.steps.items()}}
        return replace(self, steps=steps)

    def spread(self, given: Physics, transport: str, seconds: Callable[[Physics], float]) -> list[float]:
        """Logarithms of how many times as long `seconds` takes, one standard deviation away in each direction.

        The square root of the sum of their squares is the standard deviation (parameter covariance through the model).
        """
        middle = seconds(given)
        return [math.log(seconds(each) / middle) for each in self._away(given, transport)]

    def _away(self, given: Physics, transport: str) -> Iterator[Physics]:
        fields = {name: name.rpartition(".")[2] for name in self.steps if name.rpartition(".")[0] in ("", transport)}
        own = {name.rpartition(".")[2] for name in fields if "." in name}
        for direction in range(max(map(len, self.steps.values()), default=0)):
            values = {}
            for name, plain in fields.items():
                if "." in name or plain not in own:  # the transport's own parameter comes first
                    values[plain] = nearest(plain, getattr(given, plain) * self.steps[name][direction])
            yield replace(given, **values)

    def beyond(self, cell: Cell) -> list[str]:
        """Settings of a cell that lie outside the points: 'network.latency=100 ms (points: 0 ms to 5 ms)'."""
        asked, named = settings(cell), names(cell)
        apart = [
            f"{key}={named[key]} (points: {', '.join(known)})"
            for key, known in self.names.items()
            if named[key] not in known
        ]
        return apart + [
            f"{key}={_words(key, asked[key])} (points: {_words(key, low)} to {_words(key, high)})"
            for key, (low, high) in self.domain.items()
            if key in asked and not low / _BEYOND <= asked[key] <= high * _BEYOND
        ]

    def distance(self, cell: Cell) -> float:
        """How many powers of ten a setting of a cell lies outside the points, of the one that is farthest."""
        asked = settings(cell)
        reached = {key: (low, high or _SPANS.get(key, 0.0)) for key, (low, high) in self.domain.items()}
        known = {key: ends for key, ends in reached.items() if ends[1] and asked.get(key)}
        return math.log10(max([1.0, *(max(low / asked[key], asked[key] / high) for key, (low, high) in known.items())]))

    def width(self, own: float, away: Sequence[float], *cells: Cell) -> float:
        """Half-width of the interval of a logarithm of seconds, or of a ratio of two, that is to hold nine of ten.

        own: the model's own relative error; away: `spread`; cells: those that are predicted. What the model errs
        besides outside the points grows by as much again with each power of ten of their distance, which is assumed.
        """
        unseen = max((self.unseen * (1 + self.distance(cell)) for cell in cells if self.beyond(cell)), default=0.0)
        return math.hypot(math.log1p(own), math.log1p(unseen), _NINE_OF_TEN * math.hypot(*away))

    def write(self, path: Path) -> None:
        """Write as JSON, one parameter or setting per line."""
        groups = asdict(self)
        last = {key: groups.pop(key) for key in ("unseen", "error_of")}
        rows = {
            group: ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
            for group, values in groups.items()
        }
        parts = [f' "{group}": {{\n  {text}\n }}' for group, text in rows.items()]
        parts += [f' "{key}": {json.dumps(value)}' for key, value in last.items()]
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def settings(cell: Cell) -> dict[str, float]:
    """What decides how far a cell is from others: its network, its cluster and its model, as they are run."""
    scaled = scale_model(cell)
    network, cluster = scaled.network, scaled.cluster
    found = {
        "network.bandwidth": network.bandwidth,
        "network.latency": network.latency,
        "network.jitter": network.jitter,
        "network.loss": network.loss,
        "network.tcp_window": network.tcp_window,
        "network.sites": network.sites,
        "cluster.servers": cluster.servers,
        "cluster.ranks_per_server": cluster.ranks_per_server,
        "cluster.slow_ranks": max([1.0, *cluster.slow_ranks.values()]),
        "parameters": layers_of(scaled.task, scaled.shrink).elements,
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def names(cell: Cell) -> dict[str, str]:
    """What tells cells apart by name: who sends, over what, and whether links and connections have limits of theirs."""
    return {
        "algo": cell.algo.name,
        "transport": cell.transport.name,
        "cluster.server": "unequal" if cell.cluster.server else "alike",
        "network.flow_rates": "limited" if cell.network.flow_rates else "not limited",
    }


def posterior_of(cluster: str) -> Posterior | None:
    """What the fit of a cluster knows; None if the cluster was not fitted, or before fits kept it."""
    path = file_of(FOLDER / "cluster", cluster)
    if not path.exists():
        return None
    known = json.loads(path.read_text())
    return Posterior(
        {name: tuple(factors) for name, factors in known["steps"].items()},
        {key: (low, high) for key, (low, high) in known["domain"].items()},
        {key: tuple(found) for key, found in known.get("names", {}).items()},
        known.get("unseen", UNSEEN),
        known.get("error_of"),
    )


def file_of(folder: Path, cluster: str) -> Path:
    """Where a cluster's posterior lies, in the folder of the clusters' files."""
    return folder / f"{cluster}.fit.json"


def _words(key: str, value: float) -> str:
    if key == "network.bandwidth":
        return units.amount(value, units.RATES)
    if key in ("network.latency", "network.jitter"):
        return units.duration(value)
    if key == "network.tcp_window":
        return units.text(int(value), units.BYTES)
    if key == "cluster.slow_ranks":
        return f"{value:g}"
    return f"{100 * value:.3g}%" if key == "network.loss" else f"{value:,.0f}"
