"""Ten losses of every algorithm on a small VGG16, as they were: a change of these is a change of what is computed.

`python -m tests.golden.test_curves` writes them anew, for a change that is meant; say why in its commit.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from bagua_bench.comm import CountedComm
from bagua_bench.configuration.cell import Cell
from bagua_bench.worker.build import make_trainer
from tasks.vgg16 import VGG16
from tests.catalogue import declared, resolved, runnable
from tests.ranks import run

CURVES = Path(__file__).with_name("curves.json")
ALIKE = ("bytegrad_released", "decentralized_released", "low_precision_decentralized_released")  # on two ranks
NAMES = [name for name in runnable() if not declared(name).rounds and name not in ALIKE]  # rounds fall where they fall
SIZE = "run.bucket_size=10MiB"  # what is compressed together must not depend on how fast the machine is
SHORT = ["algo.warmup_steps=4", "algo.lr=1e-5"]  # more would diverge after so short a warm-up
OPTIONS = dict.fromkeys(("qadam", "qadam_released"), SHORT)


def curve(comm: CountedComm, cell: Cell) -> list[float]:
    task = VGG16("tiny", batch=8, image=32, dropout=0.0, lr=0.003)
    torch.manual_seed(0)
    model = task.model()
    losses = []
    with make_trainer(cell, model, task.optimizer(model), comm) as trainer:
        for batch in islice(task.batches(comm.rank, comm.size, seed=0), 10):
            loss = task.loss(trainer.module, batch)
            loss.backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
            losses.append(round(loss.item(), 6))
    return losses


def curves(name: str) -> list[list[float]]:
    """The losses of both ranks."""
    return run(
        "gloo", 2, curve, resolved(f"algo={name}", "task=vgg16", "task.scale=tiny", SIZE, *OPTIONS.get(name, []))
    )


@pytest.mark.parametrize("name", json.loads(CURVES.read_text()))
def test_losses_are_as_they_were(name: str) -> None:
    expected = json.loads(CURVES.read_text())[name]
    for got, wanted in zip(curves(name), expected, strict=True):
        assert got == pytest.approx(wanted, rel=5e-3)
        assert got[-1] < got[0]


if __name__ == "__main__":
    written = {name: curves(name) for name in NAMES}
    lines = ",\n".join(f'  "{name}": {json.dumps(values)}' for name, values in written.items())
    CURVES.write_text("{\n" + lines + "\n}\n")
