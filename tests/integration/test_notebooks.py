"""Notebooks run as they are, hold no outputs, and need no torch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.catalogue import HOME

NOTEBOOKS = sorted((HOME / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    notebook.cells.append(nbformat.v4.new_code_cell("import sys\nassert 'torch' not in sys.modules"))
    where = {"metadata": {"path": str(path.parent)}}
    with tempfile.TemporaryDirectory() as folder:  # sockets in it, as others may take ports before the kernel does
        channels = Config(ConnectionFileMixin=Config(transport="ipc", ip=f"{folder}/channel"))
        NotebookClient(notebook, timeout=600, startup_timeout=600, resources=where, config=channels).execute()
