"""`bagua-bench figures CAMPAIGN [--results DIR]`: draw a campaign's figure from its records.

`bagua-bench figures runs [--only KEY=VALUE ...]` draws the runs of no campaign, such as a sweep of your own.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from bagua_bench.configuration import conf_folder
from bagua_bench.figures import drawing, runs
from bagua_bench.figures.choice import module_of
from bagua_bench.results import records


def main() -> int:
    """Write PDF, PNG, CSV and a caption to RESULTS/figures and print the table."""
    parser = argparse.ArgumentParser(prog="bagua-bench figures", description=__doc__)
    parser.add_argument("campaign")
    parser.add_argument("--results", type=Path, default=Path("results"))
    only = "runs with these values, as in task=vgg16 run.steps=20"
    parser.add_argument("--only", nargs="+", default=[], metavar="KEY=VALUE", help=only)
    arguments = parser.parse_args()
    known = [records.ADHOC, *conf_folder.names("campaign")]
    if arguments.campaign not in known:
        print(f"{arguments.campaign}: no such campaign; allowed: {', '.join(known)}", file=sys.stderr)
        return 2
    path = arguments.results / arguments.campaign / "records.jsonl"
    if not path.exists():
        run = "-m algo=ddp,bytegrad" if arguments.campaign == records.ADHOC else f"campaign={arguments.campaign}"
        print(f"{path}: there are no records; run python -m bagua_bench {run}", file=sys.stderr)
        return 2
    module = import_module(module_of(arguments.campaign))
    try:
        found = records.latest(records.read([path]))
        if not found:
            raise ValueError("no run of this campaign is done")
        data = module.table(runs.selected(found, arguments.only))
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    target = arguments.results / "figures" / arguments.campaign
    target.parent.mkdir(parents=True, exist_ok=True)
    for part, rows in (module.parts(data) if hasattr(module, "parts") else {"": data}).items():
        path = target.with_name(f"{target.name}-{part}" if part else target.name)
        drawing.write(module, rows, path)
        print(rows.to_string(index=False, float_format="%.4g"))
        print(f"figure: {path}.pdf, .png, .csv, .txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
