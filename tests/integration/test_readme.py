"""What the README and the page on adding something show works unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.catalogue import HOME
from tests.integration.cli import python

BLOCK = re.compile(r"<!-- tested: (\S+) -->\n```\w+\n(.*?)```", re.S)
OUTPUTS = re.findall(r"<!-- output: (.*?) -->\n```text\n(.*?\n)```", (HOME / "README.md").read_text(), re.S)
SEEDED = "import os, torch\ntorch.manual_seed(int(os.environ['RANK']))\n"
FILES = {
    name: text for page in ("README.md", "docs/adding.md") for name, text in BLOCK.findall((HOME / page).read_text())
}


CLIPPED = ("engine.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        engine.step()")
PAIRS = ("algorithms.bytegrad import ByteGrad", "algorithms.decentralized import Decentralized as ByteGrad")


@pytest.mark.parametrize(
    ("change", "equal", "error"),
    [(("", ""), True, 0.5), (CLIPPED, True, 0.9), (PAIRS, False, 0.5)],
    ids=["as is", "clipped", "pairs"],
)
def test_engine_on_an_own_model(change: tuple[str, str], equal: bool, error: float, tmp_path: Path) -> None:
    """Unchanged, with gradient clipping, and with the ranks of one server as pairs.

    Each rank draws the same numbers in every run: 20 clipped steps end close to the bound, by luck beyond it.
    """
    script = tmp_path / "own_model.py"
    check = 'torch.save(model.weight.detach(), f"weight{dist.get_rank()}.pt")\n'
    code = FILES["own_model.py"]
    assert change[0] in code
    script.write_text(SEEDED + (code.replace(*change, 1) if change[0] else code) + check)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python(tmp_path, *torchrun, str(script), cold=change == ("", ""))
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"weight{rank}.pt") for rank in range(2))
    assert torch.equal(first, second) or not equal, "replicas differ"
    assert (first - 1).abs().max() < error, "it did not learn the sum"


def test_the_readme_shows_what_a_command_prints() -> None:
    assert OUTPUTS


@pytest.mark.parametrize(("command", "shown"), OUTPUTS, ids=lambda text: text.partition("\n")[0])
def test_what_a_command_prints_is_what_the_page_shows(command: str, shown: str, tmp_path: Path) -> None:
    verb, *arguments = command.split()
    assert verb == "bagua-bench"
    done = python(tmp_path, "-m", "bagua_bench.cli", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(shown)
