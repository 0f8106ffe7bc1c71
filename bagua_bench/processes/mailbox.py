"""JSON in files, by which processes hand each other work and results: a file is there whole or not at all."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

_POLL = 0.02  # seconds


def post(path: Path, value: Any) -> None:
    """Write a value."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value))
    part.rename(path)


def wait(path: Path) -> Any:
    """The value, once it is there."""
    while not path.exists():
        time.sleep(_POLL)
    return json.loads(path.read_text())
