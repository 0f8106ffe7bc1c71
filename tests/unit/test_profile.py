"""Profiles of a device: phases are told apart, the file means what was measured, what cannot be measured is named."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from bagua_bench.calibrate import profile, profile_file
from bagua_bench.calibrate.profile_file import Measured
from bagua_bench.configuration import plain
from bagua_bench.configuration.cell import ComputePart, TaskPart
from bagua_bench.configuration.components import build
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.schema import ComputeKeys
from bagua_bench.gpu import stand_in
from bagua_bench.gpu.stand_in import StandIn
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.layers import TABLES, Layer, Layers, read
from tasks.base import Batch, Task
from tests.catalogue import resolved

CPU = torch.device("cpu")
FORWARD, BACKWARD, OPTIMIZER = 0.2, 0.5, 0.01  # far apart, as sleeps end late on a busy machine


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        time.sleep(BACKWARD)
        return gradient.expand(3)


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        time.sleep(OPTIMIZER)


class SlowTask(Task):
    batch, synthetic, samples_per_epoch = 7, True, 7

    def model(self) -> nn.Module:
        return nn.ParameterList([torch.ones(3)])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return SlowSGD(model.parameters(), lr=0.1)

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        while True:
            yield (torch.zeros(7),)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = Slow.apply(model[0])
        return result

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


def test_phases_are_told_apart() -> None:
    layers = Layers("slow", "tiny", (("0", (3_000_000,)),), (Layer(1, (0,)),), "SGD", 12, 7)
    found = profile.measure("slow", SlowTask(), layers, CPU, "fp32", steps=3)
    assert (found.task, found.batch) == ("slow", 7)
    assert found.forward >= FORWARD and found.backward >= BACKWARD and found.optimizer >= OPTIMIZER
    assert found.backward > found.forward > found.optimizer
    assert found.codec > 0
    piece = 10 * 2**18  # elements of a bucket; encoding reads twice and writes bytes, averaging reads them back
    assert found.codec_bytes == pytest.approx(piece * (2 * 4 + 1 + 1 + 2 * 4), rel=1e-3)


def test_the_file_gives_back_what_was_measured(tmp_path: Path) -> None:
    vgg16, bert = (read(TABLES / f"{name}.json") for name in ("vgg16", "bert_large"))
    single = [
        (Measured("vgg16", 32, 0.01, 0.03, 0.01, 0.02, 1e9), vgg16),
        (Measured("bert_large", 6, 0.02, 0.03, 0.02, 0.05, 3e9), bert),
    ]
    path = tmp_path / "mine.yaml"
    path.write_text(profile_file.text(single, ["A device."]))
    given = OmegaConf.load(path)
    assert set(given) == set(OmegaConf.load(FOLDER / "compute" / "v100.yaml"))
    OmegaConf.merge(OmegaConf.structured(ComputeKeys), given)
    moved = 1e9 + 3e9 + 138_357_544 * vgg16.optimizer_bytes + 334_094_338 * 28
    assert float(given.memory_bandwidth.removesuffix("GB")) * 1e9 == pytest.approx(moved / 0.1, rel=1e-3)
    assert given.forward_share == pytest.approx(0.03 / 0.09, abs=1e-4)
    cell = resolved("mode=simulate", "task=vgg16", "task.batch=64")
    mine = OmegaConf.to_container(given) | {"name": "mine", "memory_bandwidth": moved / 0.1}
    cell = replace(cell, compute=plain.load(ComputePart, mine))
    compute = compute_of(cell, vgg16)
    assert compute.step == pytest.approx(2 * 0.05)
    assert compute.origin == "compute=mine"


def test_the_command_writes_an_option_of_the_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--scale", "tiny", "--device", "cpu", "--steps", "1", "--folder", str(tmp_path), "--name", "mine"]
    assert profile.main([*common, "--tasks", "transformer", "--precision", "fp32"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine_fp32.yaml"]
    content = (tmp_path / "mine_fp32.yaml").read_text()
    assert f"torch {torch.__version__}" in content.splitlines()[1] and "scale tiny" in content.splitlines()[1]
    assert OmegaConf.load(tmp_path / "mine_fp32.yaml").step_seconds.transformer.batch == 32
    with pytest.raises(SystemExit):
        profile.main([*common, "--precision", "tf32"])
    assert "cpu has fp32, bf16" in capsys.readouterr().err


def test_a_task_whose_packages_are_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found, notes = profile.profile(["transformer", "bert_large"], "tiny", CPU, "fp32", 1)
    assert "transformers" in notes["transformer"]
    assert "plain torch was measured instead" in notes["bert_large"]
    assert [(m.task, m.batch) for m, _ in found] == [("bert_large", 6)]


def test_a_task_that_breaks_is_named_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profile.task_part

    def broken(name: str, scale: str) -> TaskPart:
        if name == "transformer":
            raise RuntimeError("cuDNN error\nand where")
        return whole(name, scale)

    monkeypatch.setattr(profile, "task_part", broken)
    found, notes = profile.profile(["transformer", "vgg16"], "tiny", CPU, "fp32", 1)
    assert notes == {"transformer": "cuDNN error"}
    assert [m.task for m, _ in found] == ["vgg16"]


def test_stand_ins_have_the_published_size() -> None:
    vgg16, bert = (StandIn(name, "paper") for name in stand_in.NAMES)
    ours, theirs = vgg16.layers(), read(TABLES / "vgg16.json")
    assert (ours.elements, ours.macs, vgg16.batch) == (theirs.elements, theirs.macs, 32)
    assert (ours.optimizer, ours.optimizer_bytes) == (theirs.optimizer, theirs.optimizer_bytes)
    theirs = read(TABLES / "bert_large.json")
    assert bert.layers().macs == pytest.approx(theirs.macs, rel=0.01), "the embeddings compute nothing"
    assert (bert.layers().optimizer, bert.batch) == (theirs.optimizer, 6)


@pytest.mark.parametrize("name", profile.TASKS)
def test_defaults_of_a_task_are_those_of_scale_paper(name: str) -> None:
    """So that a machine without Hydra measures the same."""
    wanted, part = resolved(f"task={name}", "task.scale=paper").task, profile.task_part(name, "paper")
    assert part.target == wanted.target
    ours, theirs = (vars(build(one.target, one.options)) for one in (part, wanted))
    for made in (ours, theirs):
        made.pop("_train", None)  # the data: an object that equals itself alone
    assert ours == theirs
