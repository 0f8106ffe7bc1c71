"""Models that are only described: layers that are assumed of so many parameters, and those of models that are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bagua_bench.configuration.resolve import ConfigError
from bagua_bench.configuration.validate import validate
from bagua_bench.machine.compute import compute_of
from bagua_bench.machine.layers import TABLES, Layers, read
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.run import simulate
from tests.catalogue import HOME, resolved

SIM = ("mode=simulate", "task=own")


def layers(*overrides: str) -> Layers:
    cell = resolved(*SIM, *overrides)
    validate(cell)
    return layers_of(cell.task)


@pytest.mark.parametrize("number", [1000, 123_457, 25_000_000, 334_094_338, 1_300_000_000, 70_000_000_000])
def test_all_parameters_are_there_and_each_belongs_to_one_layer(number: int) -> None:
    found = layers(f"task.parameters={number}")
    assert found.elements == number
    assert sorted(p for layer in found.layers for p in layer.params) == [*range(len(found.params))]
    assert found.params[0][1][0] < number


def test_a_model_of_1_3_billion_is_a_transformer_like_gpt_3_xl() -> None:
    """25 blocks of width 1999, by hand: 12 x 25 x 1999^2 = 1,198,800,300, and 101,199,700 > 50,304 x 1999 are left."""
    for text in ("1.3e9", "1.3B", "1300M", "1300000000"):
        found = layers(f"task.parameters={text}")
        shapes = [shape for _, shape in found.params]
        assert shapes[0] == (101_199_700,)
        assert shapes[1:5] == [(3 * 1999, 1999), (1999, 1999), (4 * 1999, 1999), (1999, 4 * 1999)]
        assert len(shapes) == 1 + 4 * 25
    assert (
        "25 transformer blocks of width 1,999" in found.assumed and "8%" in found.assumed and "AdamW" in found.assumed
    )


def test_an_embedding_is_no_more_than_about_a_quarter() -> None:
    """With a vocabulary of 50,304 the embedding of a small model would be nearly all of it."""
    for number in (10**6, 10**7, 10**8):
        [embedding] = layers(f"task.parameters={number}").params[0][1]
        assert 0.2 < embedding / number < 0.3


def test_computing_takes_six_flop_per_parameter_and_token() -> None:
    cell = resolved(*SIM, "task.parameters=1e9", "task.length=128", "task.batch=2", "compute.flops=1e12")
    assert compute_of(cell, layers_of(cell.task)).step == pytest.approx(6 * 1e9 * 128 * 2 / 1e12)
    timed = resolved(*SIM, "task.parameters=1e9", "task.step_seconds=400ms")
    assert compute_of(timed, layers_of(timed.task)).step == pytest.approx(0.4)


def test_ddp_sends_every_parameter() -> None:
    """A ring of 4 ranks: each sends 2 x 3/4 of 4 bytes per parameter."""
    cell = resolved(*SIM, "task.parameters=1e9", "algo=ddp", "cluster.servers=4", "run.steps=1")
    assert sum(simulate(cell).ranks[0].sent.values()) == pytest.approx(6e9, rel=1e-6)


def test_the_number_of_parameters_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from hydra import initialize_config_dir\n"
        "from bagua_bench.configuration.compose import compose_cell\n"
        "from bagua_bench.configuration.conf_folder import FOLDER\n"
        "from bagua_bench.configuration.resolve import register\n"
        "from bagua_bench.configuration.validate import validate\n"
        "from bagua_bench.machine.lookup import layers_of\n"
        "register()\n"
        "with initialize_config_dir(str(FOLDER), version_base=None):\n"
        "    cell = compose_cell(['mode=simulate', 'task=own', 'task.parameters=1e9'])\n"
        "validate(cell)\n"
        "print(layers_of(cell.task).elements, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000000000", "False"]


def test_torchvision_s_models_have_their_own_layers() -> None:
    """As the table of the suite's ResNet-50, which is the same model."""
    table, found = read(TABLES / "resnet50.json"), layers("task.model=torchvision:resnet50")
    assert [shape for _, shape in found.params] == [shape for _, shape in table.params]
    assert found.layers == table.layers
    assert (found.optimizer, found.assumed) == ("AdamW", "AdamW")


def test_transformers_models_need_no_download() -> None:
    """BERT-Large without a head for questions (2 x 1024 + 2), with a pooler (1024 x 1024 + 1024)."""
    found = layers("task.model=transformers:bert-large-uncased", "task.length=384")
    assert found.elements == 334_094_338 - 2050 + 1_049_600
    table = read(TABLES / "bert_large.json")
    assert found.macs == pytest.approx(table.macs, rel=0.01)


def test_a_function_of_ones_own_makes_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its layers take is not known: they take time in proportion to their parameters."""
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n"
        "def small():\n    return nn.Sequential(nn.Linear(10, 30, bias=False), nn.Linear(30, 20, bias=False))\n"
        "def number():\n    return 3\n"
        "def wrong():\n    raise KeyError('size')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = layers("task.model=my_models:small", "task.step_seconds=10ms")
    assert [shape for _, shape in found.params] == [(30, 10), (20, 30)]
    assert found.shares() == pytest.approx([300 / 900, 600 / 900])
    assert "in proportion to its parameters" in found.assumed
    for name, message in (
        ("number", r"my_models:number: made int; allowed: torch\.nn\.Module"),
        ("wrong", "my_models:wrong: KeyError: 'size'"),
        ("nothing", "my_models:nothing: AttributeError"),
    ):
        with pytest.raises(ValueError, match=message):
            layers(f"task.model=my_models:{name}", "task.step_seconds=10ms")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "task.parameters=null: task=own needs either task.parameters, as in 1.3e9, or task.model"),
        (["task.parameters=1e9", "task.model=torchvision:resnet50"], "task.parameters=.*, task.model=torchvision"),
        (["task.parameters=many"], "task.parameters=many: allowed: a number from 1000 to 1e\\+13"),
        (["task.parameters=1.3T"], "task.parameters=1.3T: allowed: a number from"),
        (["task.parameters=10"], "task.parameters=10: allowed: a number from 1000"),
        (["task.parameters=1e9", "task.length=0"], "task.length=0: must be at least 1"),
        (["task.model=resnet50"], "task.model=resnet50: allowed: torchvision:MODEL, transformers:MODEL, or package"),
        (["task.model=no_such.module:make"], "task.model=no_such.module:make: there is no module no_such.module"),
        (["task.model=tests.linear:Linear"], "task.model=tests.linear:Linear: .*; give task.step_seconds"),
    ],
)
def test_what_describes_no_model_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(resolved(*SIM, *overrides))


def test_names_that_a_library_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torchvision:resnet51: no such model; allowed: .*resnet50"):
        layers("task.model=torchvision:resnet51")
    with pytest.raises(ValueError, match=r"transformers:no-such-model: nothing is downloaded .*gpt2"):
        layers("task.model=transformers:no-such-model")


def test_it_is_not_trained() -> None:
    with pytest.raises(ConfigError, match="mode=measure: task=own cannot be run in it; allowed: emulate, simulate"):
        validate(resolved("task=own", "task.parameters=1e9"))
