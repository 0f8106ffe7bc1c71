"""A campaign: a prepared set of cells, run in interleaved rounds and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.selection import Selection


def expand(campaign: DictConfig, overrides: Sequence[str]) -> list[Cell]:
    """The resolved cells of a campaign: every combination of its axes.

    `overrides` are the user's. One of what an axis varies takes the axis's place; where its points set other keys as
    well, it chooses among them. `campaign.only` leaves the cells with its settings. ConfigError for a campaign without
    rounds, with an axis that has no points, or without what was chosen.
    """
    if campaign.rounds < 1:
        raise ConfigError(f"campaign.rounds={campaign.rounds}: must be at least 1")
    user = [text for text in overrides if not text.startswith("campaign")]
    given = {key.lstrip("+~"): value for key, _, value in (text.partition("=") for text in user)}
    axes = [points for axis in campaign.axes if (points := _chosen(_points(axis), given))]
    made = [compose_cell([*campaign.overrides, *chain(*chosen), *user]) for chosen in product(*axes)]
    cells = list({cell.id: cell for cell in made}.values())  # where an override leaves no difference
    if campaign.only is None:
        return cells
    try:
        wanted = Selection.read(
            campaign.only, lambda own: compose_cell([*campaign.overrides, *user, *own]), "campaign.only="
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if chosen_cells := [cell for cell in cells if cell in wanted]:
        return chosen_cells
    raise ConfigError(f"campaign.only={campaign.only}: none of the {len(cells)} cells")


def _points(axis: str | ListConfig) -> list[list[str]]:
    """'algo=a,b' gives [['algo=a'], ['algo=b']]; in a list every text is a point."""
    points = _swept(axis) if isinstance(axis, str) else [point.split() for point in axis]
    if not points or not all(points):
        raise ConfigError(f"campaign.axes={axis}: expected KEY=A,B,C, or a list of texts of KEY=VALUE")
    return points


def _swept(axis: str) -> list[list[str]]:
    """The points of KEY=A,B,C; empty if the axis is anything else."""
    try:
        override = OverridesParser.create().parse_override(axis)
    except HydraException:
        return []
    if not override.is_sweep_override():
        return []
    return [[f"{override.key_or_group}={value}"] for value in override.sweep_string_iterator()]


def _chosen(points: list[list[str]], given: Mapping[str, str]) -> list[list[str]]:
    """The points of an axis that go with the user's value of the first key it varies; none: the value replaces it."""
    key = points[0][0].partition("=")[0]
    if key not in given or all(len(point) == 1 for point in points):
        return [] if key in given else points
    wanted = f"{key}={given[key]}"
    if found := [point for point in points if point[0] == wanted]:
        return found
    known = ", ".join(dict.fromkeys(point[0].partition("=")[2] for point in points))
    raise ConfigError(f"{wanted}: the campaign sets more with each value; allowed: {known}")
