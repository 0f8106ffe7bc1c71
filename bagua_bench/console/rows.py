"""Rows that a measuring command has found: as JSON with their origin, and as a table on the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bagua_bench.results import provenance


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, with the time, the code's commit and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    about = {"ended": began, "code": provenance.commit(), "machine": provenance.machine()}
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def show(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print the rows; `columns` are titles and formats over the keys of a row."""
    table = Table()
    for title in columns:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*(pattern.format(**row) for pattern in columns.values()))
    Console(width=180).print(table)
