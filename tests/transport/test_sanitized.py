"""A short run under sanitizers; `python -m tools.transport sanitize` is longer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.transport import sanitize


@pytest.mark.parametrize("kind", sanitize.SANITIZERS)
def test_sanitizers_find_nothing(built: tuple[Path, Path], kind: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    sanitize.torture(kind, strangers=100, chunks=40)
