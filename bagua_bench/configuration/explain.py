"""Turns a failed composition of the configuration into one line for the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.configuration import units
from bagua_bench.configuration.conf_folder import FOLDER


def explain(error: Exception, overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> str:
    """The first override that is at fault, its value and what is allowed; otherwise the error's first line."""
    if ambiguous := re.match(r"Ambiguous value for argument '(.*)'", str(error)):
        return f"{ambiguous[1]}: -m is missing; it makes one run for each value of a list"
    groups = _groups([FOLDER, *config_dirs])
    search = ",".join(f"file://{folder.resolve()}" for folder in config_dirs)
    selected = [f"hydra.searchpath=[{search}]"] if search else []
    with initialize_config_dir(str(FOLDER), version_base=None):
        for text in overrides:
            try:
                override = OverridesParser.create().parse_override(text)
            except HydraException:
                return f"{text}: cannot be read; write KEY=VALUE (--help lists the keys)"
            message = _fault(override, groups, selected)
            if message:
                return message
            if override.key_or_group in groups:
                selected.append(f"{override.key_or_group}={_values(override)[0]}")
    return _first_line(error)


def _fault(override: Override, groups: dict[str, list[str]], selected: list[str]) -> str | None:
    key, text = override.key_or_group, override.input_line or ""
    if key in groups:
        wrong = [value for value in _values(override) if value != "null" and value not in groups[key]]
        if wrong:
            write = _instead(key, wrong[0])
            return f"{key}={wrong[0]}: no such {key}; " + (write or allowed(wrong[0], groups[key], ""))
        return None
    if override.is_delete() or override.is_add() or override.is_force_add() or key.startswith("hydra."):
        return None
    return _unknown_key(key, text, groups, compose("config", selected)) or _bad_value(override, selected)


def _unknown_key(key: str, text: str, groups: dict[str, list[str]], node: object) -> str | None:
    path = ""
    for part in key.split("."):
        names = [str(name) for name in node] if isinstance(node, DictConfig) else []
        if part not in names:
            if not path:
                names = sorted({*names, *groups})
            return f"{text}: no such key; " + allowed(part, names, f" in {path}" if path else "")
        assert isinstance(node, DictConfig)
        node = node._get_node(part)
        path = f"{path}.{part}".lstrip(".")
    return None


def _bad_value(override: Override, selected: list[str]) -> str | None:
    for value in _values(override):
        try:
            compose("config", [*selected, f"{override.key_or_group}={value}"])
        except (HydraException, OmegaConfBaseException) as error:
            return f"{override.key_or_group}={value}: {_expected(_first_line(error.__cause__ or error))}"
    return None


def _expected(message: str) -> str:
    """What is expected, from OmegaConf's message on a wrong value."""
    match = re.search(r"could not be converted to (\w+)|expected one of \[(.*)\]", message)
    if match is None:
        return message
    return f"expected {match[1].lower()}" if match[1] else f"allowed: {match[2]}"


def allowed(given: str, names: Sequence[str], where: str) -> str:
    """'allowed in run: steps, seed (did you mean steps?)'."""
    close = get_close_matches(given, names, 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"allowed{where}: {', '.join(names)}{hint}"


def _values(override: Override) -> list[str]:
    """The values that the override gives its key: one, or a list for several runs."""
    if override.is_choice_sweep():
        return [str(value) for value in override.value().list]  # type: ignore[union-attr]
    return [override.get_value_element_as_str()]


def _instead(group: str, option: str) -> str:
    """The keys to write instead of an option that does not exist but describes them; empty if it describes none."""
    layout = re.fullmatch(r"(\d+)x(\d+)", option)
    if group == "cluster" and layout:
        return f"write cluster.servers={layout[1]} cluster.ranks_per_server={layout[2]}"
    return f"write network.bandwidth={option}" if group == "network" and _is_rate(option) else ""


def _is_rate(text: str) -> bool:
    try:
        return units.parse("", text, units.BITS_PER_SECOND) > 0
    except ValueError:
        return False


def _groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Options of every configuration group."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.yaml")):
            found.setdefault(path.parent.name, []).append(path.stem)
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
