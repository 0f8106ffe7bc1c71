"""A campaign: a prepared set of cells, run in interleaved rounds and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
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

    `overrides` are the user's; one that names an axis replaces it. `campaign.only` leaves those with its settings.
    ConfigError for a campaign without rounds, with an axis that has no points, or without a cell that has the settings.
    """
    if campaign.rounds < 1:
        raise ConfigError(f"campaign.rounds={campaign.rounds}: must be at least 1")
    given = {text.partition("=")[0].lstrip("+~") for text in overrides}
    axes = [points for axis in campaign.axes if _key(points := _points(axis)) not in given]
    user = [text for text in overrides if not text.startswith("campaign")]
    cells = [compose_cell([*campaign.overrides, *chain(*chosen), *user]) for chosen in product(*axes)]
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


def _key(points: list[list[str]]) -> str:
    """The first key that an axis varies."""
    return points[0][0].partition("=")[0]
