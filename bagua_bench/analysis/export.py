"""`bagua-bench export RESULTS --to FILE.csv|FILE.parquet|tensorboard:FOLDER`: records for other programs.

RESULTS is a file of records, a campaign's folder, or a folder with several campaigns. A table has one row a run and the
columns of bagua_bench.load. TensorBoard gets one run a record, with losses and step times, settings and results.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from bagua_bench.analysis import files, frame

_KINDS = (".csv", ".parquet")
_TENSORBOARD = "tensorboard:"


def problem(given: str) -> str | None:
    """Why a target cannot be written; None if it can."""
    if given.startswith(_TENSORBOARD):
        missing = find_spec("tensorboard") is None
        return f"--to {given}: needs TensorBoard, which is not installed: pip install tensorboard" if missing else None
    target = Path(given)
    if target.suffix not in _KINDS:
        return f"--to {target}: no such kind of file; allowed: {', '.join(_KINDS)}, {_TENSORBOARD}FOLDER"
    if target.suffix == ".parquet" and find_spec("pyarrow") is None:
        return f"--to {target}: needs PyArrow, which is not installed: pip install 'bagua-bench[parquet]'"
    return None if target.parent.is_dir() else f"--to {target}: there is no folder {target.parent}"


def main() -> int:
    """Exit code 0; 2 if there is nothing to export, or no way to."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--to", required=True, metavar="FILE")
    given = parser.parse_args()
    if reason := problem(given.to):
        print(reason, file=sys.stderr)
        return 2
    try:
        found = files.read(given.results)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.to.startswith(_TENSORBOARD):
        from bagua_bench.analysis import tensorboard

        folder = Path(given.to.removeprefix(_TENSORBOARD))
        print(f"export: {folder} ({tensorboard.write(found, folder)} runs); tensorboard --logdir {folder}")
        return 0
    data = frame.frame(found)
    if given.to.endswith(".csv"):
        data.to_csv(given.to, index=False)
    else:
        data.to_parquet(given.to, engine="pyarrow", index=False)
    print(f"export: {given.to} ({len(data)} runs, {len(data.columns)} columns)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
