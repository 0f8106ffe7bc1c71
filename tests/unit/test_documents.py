"""Pages name what there is, sources name pages that exist, and the examples of docs/adding.md run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from torch import Tensor

from bagua_bench.campaign.cells import expand
from bagua_bench.comm import CountedComm
from bagua_bench.configuration import facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.network_shape import LINK_KEYS, MOST_SERVERS
from bagua_bench.configuration.resolve import register
from bagua_bench.configuration.validate import validate
from bagua_bench.simulate.run import simulate
from bagua_bench.worker.build import build, make_trainer
from tests.catalogue import HOME, options
from tests.linear import Linear
from tests.ranks import run
from tests.unit import test_figures

PAGES = {path.stem: path.read_text() for path in sorted((HOME / "docs").glob("*.md"))}
MARKDOWN = [
    *sorted(HOME.glob("*.md")),
    *sorted((HOME / "docs").glob("*.md")),
    *sorted((HOME / "results").rglob("*.md")),
]
SOURCES = [
    HOME / "README.md",
    HOME / "Makefile",
    *sorted((HOME / "results").rglob("*.md")),
    *(
        path
        for folder in ("algorithms", "bagua_bench", "conf", "docs", "tasks", "tests", "tools")
        for path in sorted((HOME / folder).rglob("*"))
        if path.suffix in (".py", ".cpp", ".h", ".c", ".yaml", ".md")
    ),
]
CPP = HOME / "bagua_bench/transport/cpp"
STARTS = "(?:python -m|bagua-bench)"
COMMANDS = {
    tuple(shlex.split(line.split("#")[0].replace("bagua-bench", "python -m bagua_bench.cli"))[2:])
    for name in ("transport", "networks", "gpu", "fused-optimizer")
    for line in re.findall(rf"^{STARTS} .*$|(?<=`){STARTS} [^`]+(?=`)", PAGES[name], re.M)
}
NOT_FOR_READERS = re.compile(r"\bspec[:] |\bspec [a-z_]+ \d|\bD[E]SIGN\b")
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", re.S)
EXAMPLES = dict(EXAMPLE.findall(PAGES["adding"]))
PACKAGES = ("algorithms", "tasks", "bagua_bench", "bagua_bench.peers", "bagua_bench.figures")


def test_files_that_the_pages_name_exist() -> None:
    named = {name for page in PAGES.values() for name in re.findall(r"`([\w./-]+/[\w./-]*)`", page)}
    named = {name for name in named if "NAME" not in name and not name.startswith("/")}  # the machine's
    places = (HOME, HOME / "bagua_bench", HOME / "bagua_bench/transport")
    assert named
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_every_setting_of_the_transport_is_explained_and_no_other() -> None:
    paths = [*CPP.rglob("*.cpp"), CPP.parent / "joining.py"]
    sources = "".join(path.read_text() for path in paths)
    assert set(re.findall(r'"(BAGUA_NET_\w+)"', sources)) == set(re.findall(r"BAGUA_NET_[A-Z_]+", PAGES["transport"]))


def test_versions_and_limits_are_those_of_the_code() -> None:
    versions = re.findall(r"NetV\d+ ncclNetPlugin_v(\d+) ", (CPP / "nccl/plugin.cpp").read_text())
    assert f"`ncclNetPlugin_v{versions[0]}` to `ncclNetPlugin_v{versions[-1]}`" in PAGES["transport"]
    assert f"joins 2 to {MOST_SERVERS} servers" in PAGES["networks"]
    assert all(f"`network.{key}`" in PAGES["networks"] for key in LINK_KEYS)


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=" ".join)
def test_commands_exist(command: tuple[str, ...]) -> None:
    module, *words = command
    words = [word for word in words if not word.startswith(("-", "["))]
    done = subprocess.run(
        [sys.executable, "-m", module, *words, "--help"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- references ---------------------------------------------------------------------------------------------------


def test_sources_refer_to_nothing_that_a_reader_does_not_have() -> None:
    found = [f"{path}: {text}" for path in SOURCES for text in NOT_FOR_READERS.findall(path.read_text())]
    assert found == []


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)


def test_pages_and_sections_that_sources_mention_exist() -> None:
    """A page, or a page and, behind a comma, one of its headings."""
    wrong, seen = [], 0
    for path in SOURCES:
        text = re.sub(r"\s*\n\s*(?:[#*] )?", " ", path.read_text())
        for name, rest in re.findall(r"docs/([a-z-]+)\.md(, [A-Z].{0,80})?", text):
            seen += 1
            section = rest.removeprefix(", ")
            known = name in PAGES and (not rest or any(section.startswith(h) for h in headings(PAGES[name])))
            if not known:
                wrong.append(f"{path}: docs/{name}.md{rest}")
    assert seen > 20
    assert wrong == []


def anchors(page: str) -> set[str]:
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def test_links_between_pages_lead_somewhere() -> None:
    wrong = []
    for path in MARKDOWN:
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if target.startswith("http"):
                continue
            file, _, anchor = target.partition("#")
            page = path if not file else (path.parent / file).resolve()
            if not page.exists() or (anchor and anchor not in anchors(page.read_text())):
                wrong.append(f"{path}: {target}")
    assert wrong == []


def test_the_index_links_every_page_and_the_readme_links_the_index() -> None:
    assert [name for name in PAGES if name != "index" and f"]({name}.md)" not in PAGES["index"]] == []
    assert "](docs/index.md)" in (HOME / "README.md").read_text()


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert len((HOME / "README.md").read_text().split()) <= 900


def test_every_figure_says_what_it_shows() -> None:
    figures = sorted((HOME / "results" / "figures").glob("*.png"))
    assert figures
    for suffix in (".pdf", ".csv", ".txt"):
        assert [path.name for path in figures if not path.with_suffix(suffix).exists()] == []
    assert all(path.with_suffix(".txt").read_text().count("\n") == 1 for path in figures)


# -- completeness -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", options("algo"))
def test_every_algorithm_is_described(name: str) -> None:
    assert f"`{name}`" in PAGES["algorithms"]


@pytest.mark.parametrize("kind", [facts.AlgorithmFacts, facts.TaskFacts])
def test_every_fact_is_described(kind: Any) -> None:
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in PAGES["adding"]] == []


# -- examples -----------------------------------------------------------------------------------------------------

Compose = Callable[..., Cell]


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Compose]:
    """The cell that a command line stands for where the files of the examples are there."""
    shutil.copytree(FOLDER, tmp_path / "conf")
    for name, text in EXAMPLES.items():
        assert not (HOME / name).exists()
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = {name: import_module(name).__path__ for name in PACKAGES}
    for name, path in paths.items():
        path.append(str(tmp_path / name.replace(".", "/")))
    register()

    def cell(*overrides: str) -> Cell:
        with initialize_config_dir(str(tmp_path / "conf"), version_base=None):
            made = compose_cell(overrides)
        validate(made)
        return made

    yield cell
    for path in paths.values():
        path.pop()
    for name in EXAMPLES:
        sys.modules.pop(name.removesuffix(".py").replace("/", "."), None)


def given(rank: int, step: int) -> Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(10 * step + rank))


def averaged(comm: CountedComm, cell: Cell, steps: int) -> Tensor:
    model = Linear(6)
    with make_trainer(cell, model, torch.optim.SGD(model.parameters(), lr=0.1), comm) as trainer:
        for step in range(1, steps + 1):
            trainer.module(given(comm.rank, step)).backward()
            trainer.synchronize()
            trainer.optimize()
            trainer.finish_step()
        return model.x.detach().clone()


@pytest.mark.parametrize("steps", [4, 5, 10])
def test_the_algorithm_does_what_it_says(composed: Compose, steps: int) -> None:
    """Sent after step 4, it arrives after step 5."""
    cell = composed("algo=delayed_average", "task=regression")
    x = Linear(6).x.detach().repeat(2, 1)
    for step in range(1, steps + 1):
        x = x - 0.1 * torch.stack([given(rank, step) for rank in range(2)])
        if step % 4 == 0:
            taken = x
        if step > 4 and step % 4 == 1:
            x = x + taken.mean(0) - taken
    torch.testing.assert_close(torch.stack(run("threads", 2, averaged, cell, steps)), x)


def test_the_task_is_learned(composed: Compose) -> None:
    cell = composed("task=regression", "algo=ddp")
    task = build(cell.task.target, cell.task.options)
    model = task.model()
    optimizer = task.optimizer(model)
    for batch in islice(task.batches(0, 1, 0), 100):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert task.evaluate(model)["error"] < 0.1


def test_the_peer_is_simulated_on_the_cluster_with_the_profile(composed: Compose) -> None:
    where = ("mode=simulate", "task=vgg16", "cluster=four_by_eight", "compute=my_gpu", "run.steps=2")
    fused, unfused = (simulate(composed(f"algo={algo}", *where)).ranks[0] for algo in ("ddp", "unfused"))
    assert unfused.sent == pytest.approx(fused.sent)
    assert unfused.seconds[0]["step"] > fused.seconds[0]["step"] > 0.1


def test_the_figure_is_drawn_and_the_campaign_runs_what_it_needs(composed: Compose, tmp_path: Path) -> None:
    composed("algo=ddp")
    figure = import_module("bagua_bench.figures.traffic")
    data = figure.table(test_figures.campaign({"ddp": [1.0], "bytegrad": [2.0]}))
    assert list(data["algorithm"]) == ["ddp", "bytegrad"]
    figure.draw(data, Figure().subplots())
    with initialize_config_dir(str(tmp_path / "conf"), version_base=None):
        chosen = compose("config", ["campaign=traffic"]).campaign
        assert [cell.algo.name for cell in expand(chosen, [])] == ["ddp", "gradient_allreduce", "bytegrad"]
    assert chosen.figure == "traffic"
