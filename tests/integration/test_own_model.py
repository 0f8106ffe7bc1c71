"""Every snippet of docs/own-model.md, unchanged, with every algorithm, under one torchrun; and the page's table."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from tests.catalogue import HOME
from tests.integration.cli import python

PAGE = (HOME / "docs" / "own-model.md").read_text()
SNIPPETS = {
    name: (code, without.split(" and "))
    for name, without, code in re.findall(
        r"<!-- snippet: (\w+)(?:, without ([^>]*))? -->\n```python\n(.*?)```", PAGE, re.S
    )
}
SETUP = SNIPPETS.pop("setup")[0]
ALGORITHMS = {  # what replaces the first import
    "GradientAllReduce": "from algorithms.gradient_allreduce import GradientAllReduce as Algorithm",
    "ByteGrad": "from algorithms.bytegrad import ByteGrad as Algorithm",
    "QAdam":
        "from functools import partial; from algorithms.qadam import QAdam; Algorithm = partial(QAdam, warmup_steps=5)",
    "Decentralized": "from algorithms.decentralized import Decentralized as Algorithm",
    "LowPrecisionDecentralized":
        "from algorithms.low_precision_decentralized import LowPrecisionDecentralized as Algorithm",
    "AsyncModelAverage": (
        "from functools import partial; from algorithms.async_model_average import AsyncModelAverage; "
        "Algorithm = partial(AsyncModelAverage, interval_ms=1)"
    ),
}  # fmt: skip
IMPORT = re.compile(r"^from algorithms\.gradient_allreduce import GradientAllReduce as Algorithm.*$", re.M)
COMPILED_WITH = ("GradientAllReduce", "Decentralized")  # compiling takes long

DRIVER = """
import hashlib, json, os, sys, traceback
import torch, torch.distributed as dist
import tasks.torchvision_compat  # beside a CPU build of torch, transformers stumbles over torchvision
runs, folder = json.load(open(sys.argv[1])), sys.argv[2]
torch.set_num_threads(1)
rank, ranks, init = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), dist.init_process_group
store = dist.FileStore(f"{folder}/store", ranks)
found = {}
for number, (name, code) in enumerate(runs.items()):
    fresh = dist.PrefixStore(str(number), store)  # torchrun's own store remembers the groups of the run before
    dist.init_process_group = lambda backend: init(backend, store=fresh, rank=rank, world_size=ranks)
    space = {"__name__": "__main__"}
    try:
        exec(compile(code, name, "exec"), space)
        engines = [value for value in space.values() if isinstance(value, space["Engine"])]
        weights = torch.cat([p.detach().flatten() for engine in engines for p in engine.model.parameters()])
        found[name] = {
            "finite": bool(weights.isfinite().all()),
            "digest": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
        }
    except BaseException:
        found[name] = {"error": traceback.format_exc()}
        break  # the other rank waits in vain
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
with open(f"{folder}/{rank}.json", "w") as stream:
    json.dump(found, stream)
"""


def runs() -> dict[str, str]:
    """The code of every snippet with every algorithm."""
    chosen = {}
    for name, (code, without) in SNIPPETS.items():
        for algorithm, line in ALGORITHMS.items():
            if algorithm not in without and (name != "compile" or algorithm in COMPILED_WITH):
                chosen[f"{name}, {algorithm}"] = IMPORT.sub(line, SETUP) + code
    return chosen


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("snippets")
    (folder / "driver.py").write_text(DRIVER)
    (folder / "runs.json").write_text(json.dumps(runs()))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = python(folder, *command, "driver.py", "runs.json", ".", env={"TMPDIR": str(folder)})  # a snippet makes one
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", runs())
def test_snippet(name: str, outcomes: list[dict[str, Any]]) -> None:
    found = [outcome.get(name, {"error": "an earlier snippet failed"}) for outcome in outcomes]
    assert not any("error" in each for each in found), "\n".join(each.get("error", "") for each in found)
    assert all(each["finite"] for each in found)
    if name.endswith(("GradientAllReduce", "ByteGrad", "QAdam")):
        assert found[0]["digest"] == found[1]["digest"], "replicas differ"


def test_the_page_has_what_people_ask_for() -> None:
    asked = {"schedule", "clipping", "bf16", "compile", "data", "accumulation", "checkpoint", "evaluation", "ema"}
    assert asked | {"freezing", "gan", "hugging_face", "join", "give_up"} <= SNIPPETS.keys()
    assert len(runs()) == sum(len(ALGORITHMS) for _ in SNIPPETS) - 1 - len(ALGORITHMS) + len(COMPILED_WITH)


def test_every_option_of_ddp_has_an_answer() -> None:
    table = PAGE[PAGE.index("## DDP's options") :]
    options = [name for name in inspect.signature(DistributedDataParallel.__init__).parameters if name != "self"]
    missing = [name for name in options if f"`{name}`" not in table]
    assert not missing, f"no row for {missing}"
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", table, re.M)
    assert all(answer.strip() for _, answer in rows)
