"""Which changes leave a number's code as it was: made in a copy of the sources, hashed in a fresh process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bagua_bench.sources.closure import closure, file_of
from tests.catalogue import HOME

HASHES = """
import json, sys
from types import SimpleNamespace as Part
from bagua_bench.results.provenance import hashes

def of(mode, algo):
    return hashes(Part(mode=mode, algo=Part(target=algo), task=Part(target="tasks.vgg16.VGG16")))

algorithms = ["algorithms.decentralized.Decentralized", "algorithms.gradient_allreduce.GradientAllReduce"]
found = {f"{mode} {algo.rpartition('.')[2]}": of(mode, algo) for mode in ("measure", "simulate") for algo in algorithms}
print(json.dumps([found, [name for name in ("torch", "algorithms", "tasks.base") if name in sys.modules]]))
"""
MEASURED, SIMULATED = "measure GradientAllReduce", "simulate GradientAllReduce"
PAIRED = "measure Decentralized"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, without what was compiled."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("algorithms", "tasks", "bagua_bench", "conf"):
        shutil.copytree(HOME / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


def hashes(folder: Path) -> dict[str, dict[str, str]]:
    done = subprocess.run([sys.executable, "-c", HASHES], cwd=folder, capture_output=True, text=True, check=True)
    found, imported = json.loads(done.stdout)
    assert not imported, "hashing imports what it hashes"
    return dict(found)


@pytest.fixture(scope="module")
def before(copy: Path) -> dict[str, dict[str, str]]:
    return hashes(copy)


def changed(copy: Path, before: dict[str, dict[str, str]], file: str, old: str, new: str) -> set[tuple[str, str]]:
    """Cells and hashes that are others after a replacement in a file."""
    path = copy / file
    text = path.read_text()
    assert old in text, f"{file} has no {old}"
    path.write_text(text.replace(old, new, 1))
    try:
        after = hashes(copy)
    finally:
        path.write_text(text)
    return {(cell, key) for cell in before for key in before[cell] if after[cell][key] != before[cell][key]}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("bagua_bench/engine/engine.py", '"""', '"""Changed. '),
        ("bagua_bench/results/phases.py", '"""Communication is', '"""An attribute: communication is'),
        ("bagua_bench/worker/loop.py", "_STABLE = 1.1", "_STABLE = 1.1  # changed\n"),
        ("bagua_bench/transport/cpp/core/sender.cpp", "\n", "\n// changed\n\n"),
        ("bagua_bench/advise/words.py", "_LARGER = 16.0", "_LARGER = 4.0"),
        ("bagua_bench/figures/style.py", "0.75", "0.5"),
        ("bagua_bench/report/page.py", "1e5", "1e6"),
        ("bagua_bench/console/outcome.py", "1e9", "1e6"),
        ("bagua_bench/configuration/validate.py", "_CHUNKS = 2**14", "_CHUNKS = 2**15"),
        ("conf/algo/decentralized.yaml", "interval: 1", "interval: 2"),
    ],
    ids=lambda value: value if "/" in value else "",
)
def test_what_changes_no_number_keeps_every_hash(
    file: str, old: str, new: str, copy: Path, before: dict[str, dict[str, str]]
) -> None:
    assert changed(copy, before, file, old, new) == set()


def test_a_number_in_the_worker_changes_what_was_run(copy: Path, before: dict[str, dict[str, str]]) -> None:
    found = changed(copy, before, "bagua_bench/worker/loop.py", "_STABLE = 1.1", "_STABLE = 1.2")
    assert found == {(PAIRED, "sources"), (MEASURED, "sources")}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("bagua_bench/transport/cpp/core/sender.cpp", "{", "{ ;"),
        ("bagua_bench/network/relay.py", "import json", "import json, math"),
        ("bagua_bench/launch/agent.py", "import", "import math\nimport"),
        ("bagua_bench/launch/servers.py", "2**36", "2**35"),
    ],
    ids=lambda value: value if "/" in value else "",
)
def test_transport_network_and_started_processes_count_where_they_are_used(
    file: str, old: str, new: str, copy: Path, before: dict[str, dict[str, str]]
) -> None:
    assert changed(copy, before, file, old, new) == {(PAIRED, "sources"), (MEASURED, "sources")}


def test_the_simulator_counts_for_what_it_simulates(copy: Path, before: dict[str, dict[str, str]]) -> None:
    found = changed(copy, before, "bagua_bench/simulate/costs.py", "2 *", "3 *")
    assert found == {("simulate Decentralized", "sources"), (SIMULATED, "sources")}


def test_tables_that_are_read_count(copy: Path, before: dict[str, dict[str, str]]) -> None:
    found = changed(copy, before, "bagua_bench/machine/tables/vgg16.json", "1281167", "1281168")
    assert {key for _, key in found} == {"sources"} and len(found) == 4


def test_what_only_one_algorithm_imports_is_in_its_closure(copy: Path, before: dict[str, dict[str, str]]) -> None:
    assert "algorithms.topology" in closure(["algorithms.decentralized"])
    found = changed(copy, before, "algorithms/decentralized.py", "0.75", "0.5")
    assert found == {(PAIRED, "algo"), ("simulate Decentralized", "algo")}
    found = changed(copy, before, "algorithms/topology.py", "\n", "\nX = 1\n")
    assert {(PAIRED, "algo"), ("simulate Decentralized", "algo")} <= found
    assert not {key for _, key in found} & {"sources", "task"}


def test_an_own_package_is_followed_and_its_foreign_imports_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mylab" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "mylab" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "algo.py").write_text(
        "import numpy\nfrom . import near\nfrom ..far import x\nfrom algorithms import base"
    )
    (package / "near.py").touch()
    (tmp_path / "mylab" / "far.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = closure(["mylab.deep.algo"])
    assert set(found) == {
        *("mylab", "mylab.deep", "mylab.deep.algo", "mylab.deep.near", "mylab.far"),
        *("algorithms", "algorithms.base"),
    }
    assert file_of("mylab.none") is None and file_of("nothing.at.all") is None
    assert "mylab" not in sys.modules
