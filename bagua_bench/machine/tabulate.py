"""`python -m bagua_bench.machine.tabulate TASK...`: write the tables of tasks, from their models on the meta device."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.flop_counter import FlopCounterMode

from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import TaskPart
from bagua_bench.configuration.components import build
from bagua_bench.machine.layers import TABLES, Layer, Layers
from tasks.base import Task


def tabulate(task: TaskPart) -> Layers:
    """Run the task's forward pass on meta tensors and note each module's multiply-adds and parameters.

    A described model whose forward pass cannot be run is assumed to compute in proportion to its parameters.
    """
    made: Task = build(task.target, task.options)
    with torch.device("meta"):
        model = made.model()
    trainable = {p: i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    kind, traffic = optimizer_traffic(made.optimizer(nn.Linear(1, 1)))
    about, said = facts.task(task), ""
    try:
        layers = _layers(made, model, trainable)
    except (NotImplementedError, ValueError):
        if not about.described:
            raise
        layers = _in_proportion(model, trainable, int(task.options.get("length", 1)))
        said = "the time of a layer in proportion to its parameters"
    if about.described:
        said = f"{said + ', ' if said else ''}{kind}"
    return Layers(
        task=task.name,
        scale=task.scale,
        params=tuple((name, tuple(p.shape)) for name, p in zip(names, trainable, strict=True)),
        layers=layers,
        optimizer=kind,
        optimizer_bytes=traffic,
        samples_per_epoch=about.epoch or made.samples_per_epoch,
        assumed=said,
    )


def _in_proportion(model: nn.Module, position: dict[nn.Parameter, int], tokens: int) -> tuple[Layer, ...]:
    """Modules in the order of registration, each with a multiply-add per parameter and token."""
    layers: list[Layer] = []
    seen: set[int] = set()
    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p in position and position[p] not in seen]
        seen.update(position[p] for p in own)
        if own:
            layers.append(Layer(tokens * sum(p.numel() for p in own), tuple(position[p] for p in own)))
    return tuple(layers)


def _layers(task: Task, model: nn.Module, position: dict[nn.Parameter, int]) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    called: dict[nn.Module, int] = {}  # the last of its layers
    seen: set[int] = set()
    counted = 0
    flops = FlopCounterMode(display=False)

    def note(module: nn.Module, *_: object) -> None:
        nonlocal counted
        own = [position[p] for p in module.parameters(recurse=False) if p in position and position[p] not in seen]
        seen.update(own)
        total = flops.get_total_flops()
        called[module] = len(layers)
        layers.append(Layer((total - counted) // 2 // task.batch, tuple(own)))
        counted = total

    owners = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    hooks = [module.register_forward_hook(note) for module in owners]
    batch = tuple(part.to("meta") if isinstance(part, Tensor) else part for part in task.typical())
    with flops:
        task.loss(model, batch)
    for hook in hooks:
        hook.remove()
    through = _used_through_functions(model, position, seen, called)
    return tuple(
        replace(layer, params=(*layer.params, *through.get(number, []))) for number, layer in enumerate(layers)
    )


def _used_through_functions(
    model: nn.Module, position: dict[nn.Parameter, int], seen: set[int], called: dict[nn.Module, int]
) -> dict[int, list[int]]:
    """By layer: parameters of modules that are never called, because a module around them passes them to a function.

    `nn.MultiheadAttention` does so with its `out_proj`. ValueError, with their names, if no module around them is
    called either.
    """
    found: dict[int, list[int]] = {}
    lost = []
    for name, p in model.named_parameters():
        if p not in position or position[p] in seen:
            continue
        around = name.split(".")[:-1]
        owners = [model.get_submodule(".".join(around[:length])) for length in range(len(around), -1, -1)]
        layer = next((called[owner] for owner in owners if owner in called), None)
        if layer is None:
            lost.append(name)
        else:
            found.setdefault(layer, []).append(position[p])
    if lost:
        raise ValueError(
            f"parameters {', '.join(lost)}: the forward pass calls no module that holds them; call one, or freeze them "
            "(requires_grad=False)"
        )
    return found


def optimizer_traffic(optimizer: Optimizer) -> tuple[str, int]:
    """Name, and bytes per parameter: the update reads all its tensors and writes those that change (float32)."""
    if isinstance(optimizer, Adam):
        return type(optimizer).__name__, 28  # reads x, g, m, v; writes x, m, v
    assert isinstance(optimizer, SGD)
    momentum = optimizer.defaults["momentum"] > 0
    return "SGD momentum" if momentum else "SGD", 20 if momentum else 12


def main() -> None:
    """Tabulate the tasks named on the command line at scale paper."""
    from hydra import initialize_config_dir

    from bagua_bench.configuration.compose import compose_cell
    from bagua_bench.configuration.conf_folder import FOLDER
    from bagua_bench.configuration.resolve import register

    register()
    for name in sys.argv[1:]:
        with initialize_config_dir(str(FOLDER), version_base=None):
            cell = compose_cell([f"task={name}", "task.scale=paper"])
        TABLES.mkdir(exist_ok=True)
        layers = tabulate(cell.task)
        layers.save(TABLES / f"{name}.json")
        print(f"{name}: {layers.elements:,} parameters, {layers.macs / 1e9:.2f} G multiply-adds per sample")


if __name__ == "__main__":
    main()
