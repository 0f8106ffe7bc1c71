"""`bagua-bench simulate calibrate|validate`: fit a cluster's physical parameters, or check how well they predict.

`bagua-bench simulate profile` measures how fast this machine computes and is a separate command.

calibrate fits the parameters and writes conf/cluster/NAME.yaml. It uses the published points (--cluster bagua_paper or
bagua_paper_e2e) or, with --records, this suite's own measured or emulated runs; --fit "KEY=VALUE,VALUE ..." limits the
fit to records with these settings, and the cluster's file stores it. With --also TRANSPORT.PARAMETER it only shows what
the fit would find if that transport had its own value of the parameter. validate prints errors per figure, task and
algorithm, rankings, errors of points when a fit leaves them out, and errors of the records that --fit excluded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__" and sys.argv[1:2] == ["profile"]:
    from bagua_bench.calibrate.profile import main as profile

    sys.exit(profile(sys.argv[2:]))

import pandas as pd

from bagua_bench.calibrate import calibration
from bagua_bench.calibrate.quality import parameter_table


def main() -> int:
    """Exit code 0; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="bagua-bench simulate", description=__doc__)
    parser.add_argument("what", choices=["calibrate", "validate"])
    parser.add_argument("--cluster", default="bagua_paper", help="name of the file in conf/cluster")
    parser.add_argument("--records", type=Path, nargs="+", help="records of measured or emulated runs")
    parser.add_argument("--fit", metavar="SETTINGS", help="calibrate: records that the fit uses (default: all)")
    parser.add_argument("--also", metavar="TRANSPORT.PARAMETER", help="calibrate: one more parameter; writes no file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder that holds paper/*.csv")
    given = parser.parse_args()
    try:
        if given.what == "validate" and given.fit is not None:
            raise ValueError(f"--fit {given.fit}: goes with calibrate; validate reads it from the cluster's file")
        if given.what == "validate" and given.also is not None:
            raise ValueError(f"--also {given.also}: goes with calibrate")
        chosen = calibration.fit_of(given.cluster) if given.what == "validate" and given.records else given.fit
        source = calibration.open_source(given.cluster, given.results / "paper", given.records, chosen)
        if given.also is not None:
            source = source.with_own(given.also)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if source.left_out:
        print(source.left_out, file=sys.stderr)
    with pd.option_context("display.width", 200, "display.float_format", "{:.4g}".format, "display.max_rows", 200):
        if given.what == "calibrate":
            found = source.calibrate()
            print(parameter_table(found).to_string(index=False))
            if given.also is None:
                print(f"cluster: {source.write(found)}")
        else:
            for title, table in source.validate():
                print(f"\n{title}\n{table if isinstance(table, str) else table.to_string()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
