"""Layers of a model of which only the number of parameters is known. No torch import."""

from __future__ import annotations

import math

from bagua_bench.configuration.cell import TaskPart
from bagua_bench.machine.layers import Layer, Layers

_VOCABULARY = 50_304  # GPT-2's, rounded up to a multiple of 64
_ASPECT = 85  # width over number of blocks: GPT-3 XL's of 1.3e9 parameters, 2048 over 24 (Brown et al. 2020)
_EMBEDDING = 0.25  # the most that the embedding is assumed to take of the parameters
_MATRICES = (("attention.qkv", 3, 1), ("attention.out", 1, 1), ("mlp.up", 4, 1), ("mlp.down", 1, 4))
"""Of a block: name, rows and columns over the width; 12 widths squared together."""
ADAMW = "AdamW", 28  # its memory traffic: reads x, g, m, v; writes x, m, v


def assumed(task: TaskPart, parameters: int) -> Layers:
    """A transformer of so many parameters: an embedding, then blocks of equal size; the head shares its weights.

    Biases and norms are left out. A block has four matrices, 12 w^2 parameters of width w, and is 85 times as wide as
    there are blocks; the embedding has the rest of the parameters, at least of the width of the blocks and a vocabulary
    of 50,304, but about a quarter of all at most. A sample takes a multiply-add per parameter and token (Kaplan et al.
    2020), without those of attention between tokens.
    """
    depth, width = blocks(parameters)
    embedding = parameters - 12 * depth * width**2
    length, epoch = int(task.options["length"]), task.options["epoch"] or 0
    params: list[tuple[str, tuple[int, ...]]] = [("embedding.weight", (embedding,))]
    layers = [Layer(0, (0,))]  # looking a row up
    for block in range(depth):
        for name, rows, columns in _MATRICES:
            layers.append(Layer(rows * columns * width**2 * length, (len(params),)))
            params.append((f"blocks.{block}.{name}.weight", (rows * width, columns * width)))
    layers.append(Layer(embedding * length, ()))  # the head
    return Layers(
        task=task.name,
        scale=task.scale,
        params=tuple(params),
        layers=tuple(layers),
        optimizer=ADAMW[0],
        optimizer_bytes=ADAMW[1],
        samples_per_epoch=epoch,
        assumed=(
            f"{depth} transformer block{'s' * (depth > 1)} of width {width:,} and an embedding of "
            f"{embedding / parameters:.0%} of the parameters, in fp32, with {ADAMW[0]}"
        ),
    )


def blocks(parameters: int) -> tuple[int, int]:
    """Number of blocks and their width, so that blocks and embedding together have about so many parameters."""
    depth = max(1, round((parameters / (12 * _ASPECT**2)) ** (1 / 3)))
    each = 12 * depth  # of widths squared
    width = (math.sqrt(_VOCABULARY**2 + 4 * each * parameters) - _VOCABULARY) / (2 * each)
    least = math.sqrt((1 - _EMBEDDING) * parameters / each)
    return depth, max(1, int(max(width, least)))
