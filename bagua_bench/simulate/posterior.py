"""What a fit knows besides its values: how sure it is of them, and where its points lay. No torch import."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bagua_bench.configuration import units
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.physics import Physics, nearest
from bagua_bench.machine.lookup import layers_of
from bagua_bench.machine.scale import scale_model

_NINE_OF_TEN = 1.645  # standard deviations on both sides of the mean that nine of ten normal values lie within
_UNSEEN = 0.1
"""Relative error that the model has besides, under conditions that no point had: of this suite's cells that were
predicted, nine of ten lie within this and their own interval (results/validation/errors.txt)."""
_BEYOND = 1.25  # times as far as the points lie

Steps = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Posterior:
    """Uncertainty of a cluster's fitted parameters, and the range of settings that they were fitted to.

    steps: for each parameter (NAME, or TRANSPORT.NAME) one factor on its value per independent direction: where the
    parameters together are one standard deviation away. domain: the least and the greatest value of each setting.
    """

    steps: Steps
    domain: Mapping[str, tuple[float, float]]

    def spread(self, given: Physics, transport: str, seconds: Callable[[Physics], float]) -> list[float]:
        """Logarithms of how many times as long `seconds` takes, one standard deviation away in each direction.

        The square root of the sum of their squares is the standard deviation (parameter covariance through the model).
        """
        middle = seconds(given)
        return [math.log(seconds(each) / middle) for each in self._away(given, transport)]

    def _away(self, given: Physics, transport: str) -> Iterator[Physics]:
        names = {name: name.rpartition(".")[2] for name in self.steps if name.rpartition(".")[0] in ("", transport)}
        own = {name.rpartition(".")[2] for name in names if "." in name}
        for direction in range(max(map(len, self.steps.values()), default=0)):
            values = {}
            for name, field in names.items():
                if "." in name or field not in own:  # the transport's own parameter comes first
                    values[field] = nearest(field, getattr(given, field) * self.steps[name][direction])
            yield replace(given, **values)

    def beyond(self, cell: Cell) -> list[str]:
        """Settings of a cell that lie outside the points: 'network.latency=100 ms (points: 0 ms to 5 ms)'."""
        asked, sites = settings(cell), cell.network.sites
        apart = [f"network.sites={sites} (points: 1)"] if sites > 1 else []
        return apart + [
            f"{key}={_words(key, asked[key])} (points: {_words(key, low)} to {_words(key, high)})"
            for key, (low, high) in self.domain.items()
            if key in asked and not low / _BEYOND <= asked[key] <= high * _BEYOND
        ]

    def write(self, path: Path) -> None:
        """Write as JSON, one parameter or setting per line."""
        rows = {
            group: ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
            for group, values in asdict(self).items()
        }
        path.write_text("{\n" + ",\n".join(f' "{group}": {{\n  {text}\n }}' for group, text in rows.items()) + "\n}\n")


def half_width(own: float, away: Sequence[float], beyond: bool) -> float:
    """Half-width of the interval of a logarithm of seconds that is to hold nine of ten.

    own: the model's own relative error; away: `Posterior.spread`; beyond: whether no point had such conditions.
    """
    unseen = math.log1p(_UNSEEN) if beyond else 0.0
    return math.hypot(math.log1p(own), unseen, _NINE_OF_TEN * math.hypot(*away))


def settings(cell: Cell) -> dict[str, float]:
    """What decides how far a cell is from others: its network, its cluster and its model, as they are run."""
    scaled = scale_model(cell)
    found = {
        "network.bandwidth": scaled.network.bandwidth,
        "network.latency": scaled.network.latency,
        "network.loss": scaled.network.loss,
        "network.tcp_window": scaled.network.tcp_window,
        "cluster.servers": scaled.cluster.servers,
        "cluster.ranks_per_server": scaled.cluster.ranks_per_server,
        "parameters": layers_of(scaled.task, scaled.shrink).elements,
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def posterior_of(cluster: str) -> Posterior | None:
    """What the fit of a cluster knows; None if the cluster was not fitted, or before fits kept it."""
    path = file_of(FOLDER / "cluster", cluster)
    if not path.exists():
        return None
    known = json.loads(path.read_text())
    return Posterior(
        {name: tuple(factors) for name, factors in known["steps"].items()},
        {key: (low, high) for key, (low, high) in known["domain"].items()},
    )


def file_of(folder: Path, cluster: str) -> Path:
    """Where a cluster's posterior lies, in the folder of the clusters' files."""
    return folder / f"{cluster}.fit.json"


def _words(key: str, value: float) -> str:
    if key == "network.bandwidth":
        return units.amount(value, units.RATES)
    if key == "network.latency":
        return units.duration(value)
    if key == "network.tcp_window":
        return units.text(int(value), units.BYTES)
    return f"{value:.0%}" if key == "network.loss" else f"{value:,.0f}"
