"""A campaign: a prepared set of cells, run in interleaved rounds and resumed where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import chain, product
from weakref import WeakKeyDictionary

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from bagua_bench.cell import Cell
from bagua_bench.config import ConfigError, resolve


def cells(campaign: DictConfig, overrides: Sequence[str]) -> list[Cell]:
    """The resolved cells of a campaign: every combination of its axes.

    `overrides` are the user's; one that names an axis replaces it. ConfigError for a campaign of nothing.
    """
    if campaign.rounds < 1:
        raise ConfigError(f"campaign.rounds={campaign.rounds}: must be at least 1")
    given = {text.partition("=")[0].lstrip("+~") for text in overrides}
    axes = [points for axis in campaign.axes if _key(points := _points(axis)) not in given]
    user = [text for text in overrides if not text.startswith("campaign")]
    return [compose_cell([*campaign.overrides, *chain(*chosen), *user]) for chosen in product(*axes)]


def compose_cell(overrides: Sequence[str]) -> Cell:
    """Compose and resolve one configuration; Hydra must be initialised."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [override for override in parsed if _is_value(override)]
    base, choices = _composed(tuple(str(o.input_line) for o in parsed if not _is_value(o)))
    config = deepcopy(base)
    for override in values:
        OmegaConf.update(config, override.key_or_group, override.value())
    return resolve(config, choices)


def _is_value(override: Override) -> bool:
    """Whether it changes one key below a group, which takes Hydra no new look at its files."""
    group, dot, _ = override.key_or_group.partition(".")
    plain = override.type is OverrideType.CHANGE and not override.is_sweep_override()
    return plain and bool(dot) and group != "hydra"


_bases: WeakKeyDictionary[object, dict[tuple[str, ...], tuple[DictConfig, dict[str, str]]]] = WeakKeyDictionary()


def _composed(overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration and the option of each group; composed once per initialisation of Hydra."""
    known = _bases.setdefault(GlobalHydra.instance().config_loader(), {})
    if overrides not in known:
        config = compose("config", list(overrides), return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        known[overrides] = config, choices
    return known[overrides]


def _points(axis: str | ListConfig) -> list[list[str]]:
    """'algo=a,b' gives [['algo=a'], ['algo=b']]; of a list every text is a point."""
    points = _swept(axis) if isinstance(axis, str) else [point.split() for point in axis]
    if not points or not all(points):
        raise ConfigError(f"campaign.axes={axis}: expected KEY=A,B,C, or a list of texts of KEY=VALUE")
    return points


def _swept(axis: str) -> list[list[str]]:
    """Empty if it is not KEY=A,B,C."""
    try:
        override = OverridesParser.create().parse_override(axis)
    except HydraException:
        return []
    if not override.is_sweep_override():
        return []
    return [[f"{override.key_or_group}={value}"] for value in override.sweep_string_iterator()]


def _key(points: list[list[str]]) -> str:
    """What an axis varies first of all."""
    return points[0][0].partition("=")[0]
