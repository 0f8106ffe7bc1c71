"""Notebooks run as they are, hold no outputs, and need no torch."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.catalogue import HOME

NOTEBOOKS = sorted((HOME / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys\nassert 'torch' not in sys.modules"))
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(path.parent)}}).execute()
