"""What emulation needs to know about a task: parameters, order of execution, work per layer. No torch import."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

TABLES = Path(__file__).parent / "tables"
"""Tables of the tasks at scale paper, written by `python -m bagua_bench.machine.tabulate`."""


@dataclass(frozen=True)
class Layer:
    """One step of the forward pass: multiply-adds per sample, and the parameters used here for the first time."""

    macs: int
    params: tuple[int, ...]  # positions in Layers.params


@dataclass(frozen=True)
class Layers:
    """A task's model: trainable parameters in the order of registration, layers in the order of execution."""

    task: str
    scale: str
    params: tuple[tuple[str, tuple[int, ...]], ...]
    layers: tuple[Layer, ...]
    optimizer: str
    optimizer_bytes: int
    """Memory traffic of an optimizer step, bytes per parameter."""
    samples_per_epoch: int
    """0: not known."""
    assumed: str = ""
    """What is assumed of the layers; empty where they are the model's own."""

    @property
    def elements(self) -> int:
        """Number of trainable parameters."""
        return sum(_product(shape) for _, shape in self.params)

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of one sample."""
        return sum(layer.macs for layer in self.layers)

    def shares(self) -> list[float]:
        """Every layer's share of the time of a pass: its share of the multiply-adds."""
        total = self.macs
        return [layer.macs / total if total else 1 / len(self.layers) for layer in self.layers]

    def shrunk(self, factor: float) -> Layers:
        """A scale model (docs/glossary.md): every tensor is flat and `factor` times smaller, with the same work."""
        params = tuple((name, (max(1, round(_product(shape) / factor)),)) for name, shape in self.params)
        return self if factor == 1 else replace(self, params=params)

    def save(self, path: Path) -> None:
        """Write as JSON, one layer or parameter per line."""
        plain = asdict(self)
        if not self.assumed:
            del plain["assumed"]
        rows = {key: ",\n  ".join(json.dumps(row) for row in plain.pop(key)) for key in ("params", "layers")}
        head = json.dumps(plain, indent=1)[:-2]
        body = "".join(f',\n "{key}": [\n  {text}\n ]' for key, text in rows.items())
        path.write_text(f"{head}{body}\n}}\n")


def read(path: Path) -> Layers:
    """Read what `Layers.save` wrote."""
    plain = json.loads(path.read_text())
    params = tuple((name, tuple(shape)) for name, shape in plain.pop("params"))
    layers = tuple(Layer(layer["macs"], tuple(layer["params"])) for layer in plain.pop("layers"))
    return Layers(params=params, layers=layers, **plain)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
