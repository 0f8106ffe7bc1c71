"""Runs that belong to no campaign, such as a sweep of one's own: by whatever they differ in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.identity import flatten
from bagua_bench.console import display
from bagua_bench.figures import rates, sweep
from bagua_bench.results import stats
from bagua_bench.results.records import Record, cell_of, comparable

_MOST = 40  # bars, which still have names that can be read


def selected(records: Sequence[Record], wanted: Sequence[str]) -> list[Record]:
    """The records whose configuration has these values: KEY=VALUE, as in run.steps=3, and task=vgg16 for task.name.

    ValueError for a key that no record has, with those in which they differ.
    """
    kept = list(records)
    for text in wanted:
        key, equals, value = text.partition("=")
        flat = [flatten(record["config"]) for record in kept]
        known = {name for config in flat for name in config}
        key = key if key in known else f"{key}.name"
        if not equals or key not in known:
            raise ValueError(f"{text}: expected KEY=VALUE; the runs differ in {', '.join(_differing(records))}")
        values = [_shown(key, config) for config in flat]
        if value not in values:
            raise ValueError(f"{text}: no such run; there are {key}={','.join(sorted({*filter(None, values)}))}")
        kept = [record for record, found in zip(kept, values, strict=True) if found == value]
    return kept


def table(records: Sequence[Record]) -> pd.DataFrame:
    """A sweep's rows if the runs are one over algorithms and a single quantity, otherwise one row per configuration.

    ValueError if they differ in code, machine or source, or if there are too many to be drawn.
    """
    cells = {cell.id: cell for cell in map(cell_of, records)}
    if _is_sweep(records, cells):
        return sweep.table(records)
    comparable(records, _differing(records))
    if len(cells) > _MOST:
        keys = ", ".join(_differing(records))
        raise ValueError(f"{len(cells)} different runs; select at most {_MOST} with --only KEY=VALUE ...: {keys}")
    names = display.names(list(cells.values()))
    groups = rates.grouped(records, lambda cell: cell.id)
    baselines = [group for (name,), group in groups.items() if cells[name].algo.name == facts.baseline()]
    varied = {key.partition(".")[0] for key in _differing(records)}
    base = baselines[0] if len(baselines) == 1 and varied == {"algo"} else []
    noise = stats.noise([rates.of(group) for group in groups.values()])
    rows = [
        {
            "run": names[name],
            "algorithm": cells[name].algo.name,
            **rates.row(group, facts.baseline(), base),
            "aa_noise": noise,
        }
        for (name,), group in groups.items()
    ]
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, axes: Axes) -> None:
    """The lines of a sweep, or a bar per configuration."""
    if "run" not in data.columns:
        sweep.draw(data, axes)
        return
    for position, row in enumerate(data.itertuples()):
        rates.draw(axes, position, row, ratio=None if pd.isna(row.ratio_to_ddp) else row.ratio_to_ddp)
    axes.set_xticks(range(len(data)), [str(run).replace(" ", "\n") for run in data["run"]], rotation=90, fontsize=6)
    axes.set_ylabel("samples per second")
    rates.title(axes, data)
    axes.margins(y=0.12)


def panels(data: pd.DataFrame) -> Sequence[Callable[[pd.DataFrame, Axes], None]]:
    """Those of a sweep, or only the bars."""
    return [draw] if "run" in data.columns else sweep.panels(data)


def _is_sweep(records: Sequence[Record], cells: dict[str, Cell]) -> bool:
    """Whether every point of an algorithm is a single configuration, and there is a quantity that differs."""
    try:
        quantity = sweep.quantity_of(records)
    except ValueError:
        return False
    return len({(cell.algo.name, quantity.value(cell)) for cell in cells.values()}) == len(cells)


def _shown(key: str, config: Mapping[str, object]) -> str | None:
    """A value as in a command; None where the configuration has no such key."""
    if key not in config:
        return None
    value = config[key]
    return str(value).lower() if isinstance(value, bool) else display.shown(key, value)


def _differing(records: Sequence[Record]) -> list[str]:
    """The keys in which runs differ."""
    configs = [flatten(record["config"]) for record in records]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
