"""Who may import whom (docs/design.md, Who may import whom): read from the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
ROOMS = sorted(path.parent.name for path in (HOME / "bagua_bench").glob("*/__init__.py"))
TORCH_FREE_ROOMS = (
    *("advise", "analysis", "campaign", "configuration", "console", "figures", "launch", "network"),
    *("processes", "report", "results", "sources"),
)
TORCH_FREE = [
    *(f"{room}.{path.stem}" for room in TORCH_FREE_ROOMS for path in (HOME / "bagua_bench" / room).glob("[!_]*.py")),
    *(f"{room}.__main__" for room in ("advise", "figures", "network", "report")),
    *("__main__", "cli", "libraries", "calibrate.__main__", "calibrate.fit", "simulate.clock", "simulate.run"),
]


def imported(path: Path) -> set[str]:
    """Modules that a source file imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def test_algorithms_and_tasks_know_neither_each_other_nor_the_suite() -> None:
    for package, foreign in (("algorithms", ("tasks", "bagua_bench")), ("tasks", ("algorithms", "bagua_bench"))):
        for path in (HOME / package).rglob("*.py"):
            assert not [n for n in imported(path) if n.split(".")[0] in foreign], path


def test_the_suite_names_no_concrete_algorithm_or_task() -> None:
    for path in (HOME / "bagua_bench").rglob("*.py"):
        for name in imported(path):
            top, _, module = name.partition(".")
            assert top not in ("algorithms", "tasks") or module.split(".")[-1] == "base", f"{path} imports {name}"


def test_nothing_that_is_installed_needs_what_is_not() -> None:
    for package in ("algorithms", "tasks", "bagua_bench"):
        for path in (HOME / package).rglob("*.py"):
            assert not [n for n in imported(path) if n.split(".")[0] in ("tools", "tests")], path


def test_torchvision_is_imported_in_one_place() -> None:
    users = {p.name for p in HOME.glob("tasks/*.py") if any(n.split(".")[0] == "torchvision" for n in imported(p))}
    assert users == {"torchvision_compat.py"}


@pytest.fixture(scope="module")
def before_torch() -> set[str]:
    """Of these modules, imported one after the other, those that came before torch."""
    code = "import sys, importlib\nfor name in sys.argv[1:]:\n importlib.import_module(f'bagua_bench.{name}')\n"
    code += " if 'torch' in sys.modules: break\n print(name)"
    done = subprocess.run([sys.executable, "-c", code, *TORCH_FREE], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_parent_never_imports_torch(module: str, before_torch: set[str]) -> None:
    assert module in before_torch, "it, or one before it"


def test_a_foreign_package_of_the_same_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    done = subprocess.run([sys.executable, "-m", "bagua_bench"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "another package named 'tasks'" in done.stderr
    assert str(tmp_path) in done.stderr


def arrows() -> dict[str, set[str]]:
    """Modules of the packages that each imports, wherever it does so but for types alone."""
    paths = [path for package in ("algorithms", "tasks", "bagua_bench") for path in (HOME / package).rglob("*.py")]
    names = {path: ".".join(path.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    found: dict[str, set[str]] = {}
    for path, name in names.items():
        tree = ast.parse(path.read_text())
        for node in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
            if "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = []
        used = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                used |= parts & set(names.values()) or {node.module}
        found[name] = (used & set(names.values())) - {name}
    return found


def circles(left: dict[str, set[str]]) -> list[str]:
    """What is in a circle, or above one."""
    while done := {name for name, used in left.items() if not used & set(left)}:
        left = {name: used for name, used in left.items() if name not in done}
    return sorted(left)


def test_no_files_import_each_other_in_a_circle() -> None:
    found = arrows()
    assert sum(map(len, found.values())) > 400
    assert not circles(found)


def test_no_rooms_import_each_other_in_a_circle() -> None:
    def room(module: str) -> str:
        parts = module.split(".")
        return parts[1] if len(parts) > 1 and parts[1] in ROOMS else module

    found: dict[str, set[str]] = {}
    for name, used in arrows().items():
        found.setdefault(room(name), set()).update({room(other) for other in used} - {room(name)})
    assert set(ROOMS) <= set(found)
    assert not circles(found)


def test_every_room_is_on_the_page_about_the_design() -> None:
    page = (HOME / "docs" / "design.md").read_text()
    assert [room for room in ROOMS if f"| `{room}` |" not in page] == []


def test_every_package_is_installed() -> None:
    declared = re.findall(r'^    "([\w.]+)",$', (HOME / "pyproject.toml").read_text(), re.MULTILINE)
    for top in ("algorithms", "tasks", "bagua_bench"):
        for file in (HOME / top).rglob("__init__.py"):
            assert ".".join(file.parent.relative_to(HOME).parts) in declared
