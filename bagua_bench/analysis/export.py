"""`bagua-bench export RESULTS --to FILE.csv|FILE.parquet`: records as a table for other programs, one row a run.

RESULTS is a file of records, a campaign's folder, or a folder with several campaigns. The columns are those of
bagua_bench.load.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from bagua_bench.analysis import frame

_KINDS = (".csv", ".parquet")


def problem(target: Path) -> str | None:
    """Why a file cannot be written; None if it can."""
    if target.suffix not in _KINDS:
        return f"--to {target}: no such kind of file; allowed: {', '.join(_KINDS)}"
    if target.suffix == ".parquet" and find_spec("pyarrow") is None:
        return f"--to {target}: needs PyArrow, which is not installed: pip install 'bagua-bench[parquet]'"
    return None if target.parent.is_dir() else f"--to {target}: there is no folder {target.parent}"


def main() -> int:
    """Exit code 0; 2 if there is nothing to export, or no way to."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--to", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    if reason := problem(given.to):
        print(reason, file=sys.stderr)
        return 2
    try:
        data = frame.load(given.results)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.to.suffix == ".csv":
        data.to_csv(given.to, index=False)
    else:
        data.to_parquet(given.to, engine="pyarrow", index=False)
    print(f"export: {given.to} ({len(data)} runs, {len(data.columns)} columns)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
