"""A campaign: a prepared set of cells, run in interleaved rounds and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, open_dict

from bagua_bench.config import resolve


def cells(campaign: DictConfig, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """The resolved cells of a campaign: every combination of its axes.

    `overrides` are the user's; one that names an axis replaces it.
    """
    given = {text.partition("=")[0].lstrip("+~") for text in overrides}
    axes = [points for axis in campaign.axes if _key(points := _points(axis)) not in given]
    user = [text for text in overrides if not text.startswith("campaign")]
    return [compose_cell([*campaign.overrides, *chain(*chosen), *user]) for chosen in product(*axes)]


def compose_cell(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose and resolve one configuration; Hydra must be initialised."""
    config = compose("config", list(overrides), return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return resolve(config, choices)


def _points(axis: str | ListConfig) -> list[list[str]]:
    """'algo=a,b' gives [['algo=a'], ['algo=b']]; of a list every text is a point."""
    if not isinstance(axis, str):
        return [point.split() for point in axis]
    override = OverridesParser.create().parse_override(axis)
    assert override.is_sweep_override(), f"campaign axis {axis}: expected KEY=A,B,C"
    return [[f"{override.key_or_group}={value}"] for value in override.sweep_string_iterator()]


def _key(points: list[list[str]]) -> str:
    """What an axis varies first of all."""
    return points[0][0].partition("=")[0]
