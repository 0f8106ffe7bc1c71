"""Turns Hydra's tree of texts with units into a cell of plain values."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from bagua_bench.configuration import facts, known_keys, network_settings, plain, units
from bagua_bench.configuration.cell import AlgoPart, Cell, ComputePart, RunPart, TaskPart, TransportPart
from bagua_bench.configuration.schema import GROUPS, SCALES, Config, Mode
from bagua_bench.configuration.variants import register_resolvers
from bagua_bench.processes import owner


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line for the user."""


def register() -> None:
    """Tell Hydra the schema and OmegaConf the resolvers used in conf/."""
    ConfigStore.instance().store("schema", Config)
    OmegaConf.register_new_resolver("default_scale", _default_scale, replace=True)
    OmegaConf.register_new_resolver("by_scale", _by_scale, replace=True)
    OmegaConf.register_new_resolver("default_transport", _default_transport, replace=True)
    OmegaConf.register_new_resolver("scratch", _scratch, replace=True)
    register_resolvers()


_scratch_folder = cache(owner.folder)


def _scratch() -> str:
    """A folder for what Hydra writes during a multirun; it is removed when the process ends."""
    return _scratch_folder().name


def _default_scale(*, _root_: DictConfig) -> str:
    on_gpu = has_cuda() and _root_.transport.backend == "nccl"
    return "paper" if _root_.mode != Mode.measure or on_gpu else "cpu"


def _default_transport() -> str:
    return "nccl" if has_cuda() else "gloo"


def _by_scale(*values: Any, _parent_: DictConfig) -> Any:
    """The value for the task's scale; a wrong scale is reported by `validate`."""
    return values[SCALES.index(_parent_.scale) if _parent_.scale in SCALES else 0]


def has_cuda() -> bool:
    """Whether this process sees an NVIDIA GPU and the installed torch is a CUDA build (found without importing it)."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    try:
        library = distribution("torch").locate_file("torch/lib/libtorch_cuda.so")
    except PackageNotFoundError:
        return False
    devices = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg")]  # the latter under WSL
    return Path(str(library)).exists() and bool(devices)


def resolve(config: DictConfig, choices: dict[str, str]) -> Cell:
    """The cell in plain units; `choices` names the option of each group.

    ConfigError for a key that does not exist, or a value that does not parse.
    """
    refuse_unknown(config)
    given = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    assert isinstance(given, dict)
    groups = {group: {"name": choices[group], **(given[group] or {})} for group in GROUPS}
    try:
        network, cluster = network_settings.parts(groups["network"], groups["cluster"])
        transport = _transport(groups["transport"])
        cell = Cell(
            mode=given["mode"],
            task=TaskPart.from_plain(_task(groups["task"])),
            algo=AlgoPart.from_plain(groups["algo"]),
            transport=transport,
            cluster=cluster,
            network=network,
            compute=_compute(choices["compute"], given["compute"]) if given["mode"] != "measure" else None,
            run=_run(given["run"], given["tune"], given["elastic"], transport.backend),
        )
        facts.algorithm(cell.algo), facts.task(cell.task)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return cell


def refuse_unknown(config: DictConfig) -> None:
    """ConfigError if the configuration has a key that its schema does not have."""
    for message in known_keys.unknown_keys(config):
        raise ConfigError(message)


def _task(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "step_seconds": units.seconds("task.step_seconds", given.get("step_seconds"))}


def _transport(given: dict[str, Any]) -> TransportPart:
    chunk, streams = given["chunk"], given["streams"]
    size = None if chunk is None else int(units.parse("transport.chunk", chunk, units.BYTES))
    if streams is not None and str(streams).isdigit():
        streams = int(streams)
    return plain.load(TransportPart, {**given, "chunk": size, "streams": streams}, "transport")


def _compute(name: str, given: dict[str, Any]) -> ComputePart:
    bandwidth = units.parse("compute.memory_bandwidth", given["memory_bandwidth"], units.BYTES)
    own = {"memory_bandwidth": bandwidth, "step_seconds": _known_steps(given["step_seconds"])}
    return plain.load(ComputePart, {"name": name, **given, **own}, "compute")


def _known_steps(given: Any) -> dict[str, Any]:
    """The steps that a machine is known to take, by task, in seconds."""
    path = "compute.step_seconds"
    for key, value in given.items() if isinstance(given, dict) else [("", given)]:
        if not isinstance(value, dict):
            where = f"{path}.{key}".rstrip(".")
            raise ValueError(f"{where}={value}: write task.step_seconds={value}, or {path}.TASK.seconds= and .batch=")
    return {
        task: {**step, "seconds": units.seconds(f"{path}.{task}.seconds", step["seconds"])}
        if "seconds" in step
        else step
        for task, step in given.items()
    }


def _run(given: dict[str, Any], tune: dict[str, Any], elastic: dict[str, Any], backend: str) -> RunPart:
    own: dict[str, Any] = {"timeout": units.parse("run.timeout", given["timeout"], units.SECONDS)}
    own["autotune"] = tune if given["autotune"] else None
    own["fused_optimizer"] = given["fused_optimizer"] or None
    own["trace"] = given["trace"] or None
    own["elastic"] = (
        {**elastic, "outages": [_outage(text) for text in elastic["outages"]]} if given["elastic"] else None
    )
    if given["bucket_size"] is not None:
        own["bucket_size"] = int(units.parse("run.bucket_size", given["bucket_size"], units.BYTES))
    if given["device"] == "auto":
        own["device"] = "cuda" if has_cuda() and backend == "nccl" else "cpu"
    return plain.load(RunPart, {**given, **own}, "run")


_OUTAGE = re.compile(r"(\d+)@(\d+)(?:-(\d+))?")


def _outage(text: str) -> dict[str, int | None]:
    found = _OUTAGE.fullmatch(text)
    if found is None:
        raise ValueError(f"elastic.outages={text}: expected SERVER@STEP or SERVER@STEP-STEP, as in 1@20-50")
    return {"server": int(found[1]), "step": int(found[2]), "back": None if found[3] is None else int(found[3])}
