"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.catalogue import HOME
from tests.integration.cli import bench, python, recorded

BLOCK = re.compile(r"<!-- tested: (\S+) -->\n```\w+\n(.*?)```", re.S)
FILES = dict(BLOCK.findall((HOME / "README.md").read_text()))


CLIPPED = ("engine.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        engine.step()")
PAIRS = ("algorithms.bytegrad import ByteGrad", "algorithms.decentralized import Decentralized as ByteGrad")


@pytest.mark.parametrize(
    ("change", "equal", "error"),
    [(("", ""), True, 0.5), (CLIPPED, True, 0.9), (PAIRS, False, 0.5)],
    ids=["as is", "clipped", "pairs"],
)
def test_engine_on_an_own_model(change: tuple[str, str], equal: bool, error: float, tmp_path: Path) -> None:
    """As it stands, with the habit of clipping, and with the ranks of one server as pairs."""
    script = tmp_path / "own_model.py"
    check = 'torch.save(model.weight.detach(), f"weight{dist.get_rank()}.pt")\n'
    code = FILES["own_model.py"]
    assert change[0] in code
    script.write_text((code.replace(*change, 1) if change[0] else code) + check)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python(tmp_path, *torchrun, str(script), cold=change == ("", ""))
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"weight{rank}.pt") for rank in range(2))
    assert torch.equal(first, second) or not equal, "replicas differ"
    assert (first - 1).abs().max() < error, "it did not learn the sum"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and of the configuration."""
    for name in ("algorithms", "tasks", "bagua_bench", "conf"):
        shutil.copytree(HOME / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_adding_an_algorithm_takes_the_two_files_shown(copy: Path) -> None:
    added = [name for name in FILES if "local_sgd" in name]
    assert len(added) == 2
    for name in added:
        assert not (copy / name).exists()
        (copy / name).write_text(FILES[name])
    done = bench(copy, "task=quadratic", "algo=local_sgd", "algo.interval=2", "run.steps=10", cold=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [record] = recorded(copy)
    assert record["status"] == "done"
    parameters = record["result"]["parameters"]
    assert sum(record["result"]["bytes_per_step"][0].values()) == pytest.approx(parameters * 4 / 2)
