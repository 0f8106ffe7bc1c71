"""Files of records below a path. No torch import."""

from __future__ import annotations

from pathlib import Path

from bagua_bench.results import records
from bagua_bench.results.records import Record

_NAME = "records.jsonl"


def read(results: str | Path) -> list[Record]:
    """The records of a file, of a campaign's folder, or of a folder with several campaigns.

    ValueError, one line, if there are none, or if a file has something else. Of a folder with several campaigns, files
    of another kind are passed over.
    """
    path = Path(results)
    single = path if path.is_file() else path / _NAME
    if single.is_file():
        found = records.read([single])
    else:
        found = [record for each in sorted(path.glob(f"*/{_NAME}")) for record in _of_this_kind(each)]
    if not found:
        raise ValueError(f"{path}: there are no records; expected a {_NAME}, a campaign's folder, or a folder of such")
    return found


def _of_this_kind(path: Path) -> list[Record]:
    """What the transport's own measurements left beside the campaigns has another schema, or none."""
    try:
        return records.read([path])
    except ValueError:
        return []
