"""Says what is wrong with a resolved configuration, before anything is started and without importing torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec

from bagua_bench import libraries
from bagua_bench.configuration import (
    conf_folder,
    data_settings,
    elastic_settings,
    facts,
    network_settings,
    own_model,
    physics,
    units,
)
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.network_shape import AUTO, INT8, MOST_STREAMS, SLOWEST
from bagua_bench.configuration.resolve import ConfigError, has_cuda
from bagua_bench.sources.signature import arguments, attributes

_CHUNKS = 2**14, 2**26  # kMinChunkBytes and kMaxChunkBytes of the transport


def validate(cell: Cell) -> None:
    """Raise ConfigError, one line that names key, value and what is allowed, for the first problem."""
    for rule in (
        _constructors,
        _amounts,
        _ranges,
        _compute,
        _algorithm,
        _device,
        _transport,
        network_settings.problems,
        physics.problems,
        own_model.problems,
        data_settings.problems,
        _peers,
        _tuning,
        _tracing,
        _fusing,
        _batch_norm,
        elastic_settings.problems,
        _modes,
    ):
        for message in rule(cell):
            raise ConfigError(message)


def absent(cell: Cell) -> str | None:
    """One line about what is not installed here and is needed to run the cell; None if nothing, or if simulated."""
    return None if cell.mode == "simulate" else facts.absent(cell.algo)


def _constructors(cell: Cell) -> Iterator[str]:
    for group, part in (("task", cell.task), ("algo", cell.algo)):
        try:
            accepted = arguments(part.target)
        except ValueError as error:
            yield f"{group}.{error}"
            return
        for key, value in part.options.items():
            if key not in accepted:
                yield f"{group}.{key}={_text(value)}: no such key; allowed in {group}: {', '.join(accepted)}"
            elif problem := accepted[key].problem(value):
                yield f"{group}.{key}={_text(value)}: {problem}"


def _amounts(cell: Cell) -> Iterator[str]:
    """Options of an algorithm that are texts with units."""
    declared, options = facts.algorithm(cell.algo), cell.algo.options
    for keys, known in ((declared.in_bytes, units.BYTES), (declared.in_time, units.SECONDS)):
        for key in (key for key in keys if isinstance(options.get(key), str)):
            try:
                units.parse(f"algo.{key}", options[key], known)
            except ValueError as error:
                yield str(error)


def _ranges(cell: Cell) -> Iterator[str]:
    for path, value, least in _least(cell):
        if not value >= least:
            yield f"{path}={value}: must be at least {least}"
    if cell.task.step_seconds is not None and not 0 < cell.task.step_seconds < math.inf:
        yield f"task.step_seconds={cell.task.step_seconds}: must be positive, or null for the profile's"
    if cell.run.timeout <= 0:
        yield f"run.timeout={cell.run.timeout}s: must be positive"


def _compute(cell: Cell) -> Iterator[str]:
    """The values of a machine that is not here: none may be divided by zero, or make a time negative."""
    machine = cell.compute
    if machine is None:
        return
    above = {"flops": machine.flops, "memory_bandwidth": machine.memory_bandwidth}
    for task, step in machine.step_seconds.items():
        above |= {f"step_seconds.{task}.seconds": step.seconds, f"step_seconds.{task}.batch": step.batch}
    for key, value in above.items():
        if not 0 < value < math.inf:
            yield f"compute.{key}={value:.10g}: must be positive"
    if not 0 <= machine.forward_share <= 1:
        yield f"compute.forward_share={machine.forward_share:.10g}: must be from 0 to 1"


def _least(cell: Cell) -> Iterator[tuple[str, float, float]]:
    """Keys, their values, and the minimum of each."""
    run, cluster = cell.run, cell.cluster
    yield "run.steps", run.steps, 1
    yield "run.untimed", run.untimed, 0
    yield "run.warmup", run.warmup, 0
    yield "run.accumulate", run.accumulate, 1
    yield "run.bucket_size", run.bucket_size or 0, 0
    yield "run.channels", 1 if run.channels is None else run.channels, 1
    if run.autotune is not None:
        yield "tune.max_samples", run.autotune.max_samples, 1
        yield "tune.sample_steps", run.autotune.sample_steps, 1
        yield "tune.warmup_steps", run.autotune.warmup_steps, 1
        yield "tune.advised", run.autotune.advised, 0
    yield "cluster.servers", cluster.servers, 1
    yield "cluster.ranks_per_server", cluster.ranks_per_server, 1
    yield "task.batch", cell.task.options.get("batch", 1), 1
    yield "compute.shrink", cell.shrink, 1
    yield "compute.haste", cell.haste, SLOWEST


def _algorithm(cell: Cell) -> Iterator[str]:
    """Check what the algorithm declares against the rest of the cell."""
    declared, name = facts.algorithm(cell.algo), cell.algo.name
    if cell.mode not in declared.modes:
        yield f"mode={cell.mode}: algo={name} cannot be run in it; allowed: {', '.join(declared.modes)}"
    if declared.serving >= cell.cluster.servers:
        yield (
            f"cluster.servers={cell.cluster.servers}: {declared.serving} of them only serve with this algo={name}, and "
            f"none is left to train; allowed: at least {declared.serving + 1}"
        )
    if declared.needs_shapes and cell.shrink != 1:
        yield (
            f"compute.shrink={cell.shrink:g}: algo={name} looks at the shapes of parameters, which a "
            "scale model does not have; allowed: 1"
        )
    if cell.run.precision == "fp16" and not declared.skips_steps:
        yield (
            f"run.precision=fp16: algo={name} updates its state before it is known whether an overflow skips the "
            "step; allowed: fp32, bf16"
        )


def _device(cell: Cell) -> Iterator[str]:
    device, transport = cell.run.device, cell.transport
    if transport.backend == "nccl" and device != "cuda" and cell.mode == "measure":
        cpu = "bagua_net" if transport.plugin else "gloo"
        but = f"run.device={device}" if has_cuda() else "there is no CUDA device, or torch is not a CUDA build"
        yield f"transport={transport.name}: NCCL moves CUDA tensors only, but {but}; use {cpu}"
    if transport.backend == "gloo" and device == "cuda" and cell.mode == "measure":
        yield f"transport={transport.name}: moves CPU tensors only, but run.device=cuda; use nccl"
    if cell.run.precision != "fp32" and cell.mode != "measure":
        yield (
            f"run.precision={cell.run.precision}: mode={cell.mode} computes nothing; allowed: fp32; times of other "
            f"precisions are compute='s: {', '.join(conf_folder.names('compute'))}"
        )


def _transport(cell: Cell) -> Iterator[str]:
    transport, device = cell.transport, cell.run.device
    name, streams, plugin = transport.name, transport.streams, transport.plugin
    used = transport.backend == "bagua_net" or plugin is not None
    if plugin not in (None, "bagua_net") or (plugin and transport.backend != "nccl"):
        yield f"transport.plugin={plugin}: allowed: bagua_net or null, with transport.backend=nccl"
    known = streams in (None, AUTO) or (isinstance(streams, int) and 1 <= streams <= MOST_STREAMS)
    if used != (streams is not None) or not known:
        yield f"transport.streams={_text(streams)}: allowed: 1 to {MOST_STREAMS} or auto with bagua_net, null without"
    if streams == AUTO and cell.run.autotune is not None:
        yield f"transport.streams={AUTO}: run.autotune chooses their number; allowed with it: 1 to {MOST_STREAMS}"
    least, most = _CHUNKS
    if transport.chunk is not None and not (used and least <= transport.chunk <= most):
        yield f"transport.chunk={transport.chunk}: allowed: {least} to {most} bytes with bagua_net, null without"
    yield from _wire(cell)
    if transport.backend == "bagua_net" and device != "cpu":
        yield f"transport={name}: moves CPU tensors only, but run.device={device}; use nccl_bagua_net"
    if used and cell.mode != "simulate":
        try:
            libraries.plugin()
        except RuntimeError as error:
            yield f"transport={name}: {error}"


def _wire(cell: Cell) -> Iterator[str]:
    """A peer does not know what is really sent. Averages of weights would lose what is small."""
    wire = cell.transport.wire
    if wire is None:
        return
    if wire != INT8 or cell.transport.backend != "bagua_net":
        yield f"transport.wire={wire}: allowed: {INT8} with transport=bagua_net, otherwise null"
    if cell.shrink != 1:
        yield f"transport.wire={wire}: allowed: with compute.shrink=1"
    if facts.algorithm(cell.algo).peer or attributes(cell.algo.target).get("consensus") or cell.run.elastic is not None:
        yield (
            f"transport.wire={wire}: allowed: algorithms of the engine that add up gradients, not weights, and no "
            "run.elastic"
        )


def _peers(cell: Cell) -> Iterator[str]:
    if not facts.algorithm(cell.algo).peer:
        return
    run = cell.run
    if attributes(cell.algo.target).get("by_tag") and cell.mode != "simulate" and cell.transport.backend != "gloo":
        yield (
            f"transport={cell.transport.name}: algo={cell.algo.name} needs messages that are matched by their tags; "
            "allowed: gloo"
        )
    for key, value, meaningless in (
        ("overlap", run.overlap, (True,)),
        ("bucket_size", run.bucket_size, (None, 10 * 2**20)),  # Bagua's published default: a campaign may set it for
        ("channels", run.channels, (None, 1)),  # all of its cells
        ("find_unused_parameters", run.find_unused_parameters, (False,)),
        ("autotune", run.autotune is not None, (False,)),
    ):
        if value not in meaningless:
            yield f"run.{key}={_text(value)}: belongs to Bagua's engine; algo={cell.algo.name} has its own options"


def _tuning(cell: Cell) -> Iterator[str]:
    """What can be tuned depends on the algorithm; the engine has the same rule (`engine.autotune`)."""
    declared, cluster = facts.algorithm(cell.algo), cell.cluster
    if cell.run.autotune is None or declared.peer:
        return
    if cell.mode == "simulate":
        yield "run.autotune=true: a simulated run needs no trials; bagua-bench advise compares settings at once"
    elif cluster.ranks == 1:
        yield "run.autotune=true: one rank has nothing to tune; allowed: at least 2 ranks"
    elif declared.rounds:
        yield f"run.autotune=true: algo={cell.algo.name} averages beside its steps, which are as fast in any buckets"
    elif declared.buckets and not (
        (cluster.ranks_per_server > 1 and cluster.servers > 1) or cell.transport.backend == "bagua_net"
    ):
        yield f"run.autotune=true: algo={cell.algo.name} sends {declared.buckets} bucket, there is nothing to tune"
    elif find_spec("optuna") is None:
        yield "run.autotune=true: needs Optuna, which is not installed: pip install 'bagua-bench[autotune]'"
    elif 0 < cell.run.autotune.max_samples <= cell.run.autotune.advised:
        yield (
            f"tune.advised={cell.run.autotune.advised}: allowed: fewer than tune.max_samples, as the engine's own "
            "setting is tried, too"
        )
    elif cell.run.autotune.advised and cell.mode != "emulate":
        yield (
            f"tune.advised={cell.run.autotune.advised}: mode={cell.mode} does not know how long computing takes; "
            "allowed: 0, with run.bucket_size and run.channels from bagua-bench advise, which are tried first"
        )


def _tracing(cell: Cell) -> Iterator[str]:
    if cell.run.trace and cell.run.elastic is not None:
        yield "run.trace=true: the steps of an elastic run are not noted; allowed: run.elastic=false"


def _fusing(cell: Cell) -> Iterator[str]:
    if cell.run.fused_optimizer and (cell.mode == "simulate" or (cell.compute and cell.compute.optimizer == "profile")):
        yield (
            f"run.fused_optimizer=true: mode={cell.mode} takes the optimizer's time from the profile; allowed: "
            "mode=measure, or mode=emulate with compute.optimizer=measured"
        )


def _batch_norm(cell: Cell) -> Iterator[str]:
    if not cell.task.options.get("sync_bn"):
        return
    if cell.mode != "measure":
        yield f"task.sync_bn=true: the layers of mode={cell.mode} compute nothing; allowed: mode=measure"
    elif facts.algorithm(cell.algo).rounds:
        yield f"task.sync_bn=true: ranks wait for each other in every layer, which algo={cell.algo.name} avoids"
    elif facts.algorithm(cell.algo).serving:
        yield f"task.sync_bn=true: all ranks meet in every layer, and with this algo={cell.algo.name} some have none"


def _modes(cell: Cell) -> Iterator[str]:
    modes = facts.task(cell.task).modes
    if cell.mode not in modes:
        yield f"mode={cell.mode}: task={cell.task.name} cannot be run in it; allowed: {', '.join(modes)}"
    if cell.mode != "measure" and not facts.task(cell.task).layers:
        yield f"mode={cell.mode}: task={cell.task.name} has no layers whose time could be modelled; allowed: measure"
    for key, value in attributes(cell.algo.target).get("simulated_with", {}).items():
        given = cell.algo.options.get(key, value)
        if cell.mode == "simulate" and given != value:
            yield f"algo.{key}={_text(given)}: mode=simulate does not know what it does; allowed: {_text(value)}"


def _text(value: object) -> str:
    """A value as the user would write it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
