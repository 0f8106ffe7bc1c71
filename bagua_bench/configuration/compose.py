"""Composes many cells quickly from KEY=VALUE overrides."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from weakref import WeakKeyDictionary

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict

from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.resolve import resolve


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
    """Whether it only changes a key below a group, for which Hydra need not read its files again."""
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
