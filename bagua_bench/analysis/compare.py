"""`bagua-bench compare A B`: what differs between two sets of runs, and by how much.

A and B are PATH[:WHICH][@COMMIT]:

  PATH      a file of records, a campaign's folder, or a folder with several campaigns
  WHICH     a cell by its id or the beginning of it, or KEY=VALUE,... as in a run: algo=ddp,network.latency=0.005
            (seconds, bytes, bits/s, as in the records)
  COMMIT    of the code, or the beginning of it; without it the newest code counts

Of one cell on each side these two are compared, of more those that have the same settings but for the keys by which
they were chosen. Only runs that are done count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from bagua_bench.analysis.comparison import Comparison, compare, pairs
from bagua_bench.analysis.side import side
from bagua_bench.configuration import units


def text(found: Comparison) -> Iterator[str]:
    """The lines that are printed of a pair."""
    for letter, name, cell, rounds in zip("AB", found.names, found.cells, found.rounds, strict=True):
        yield f"{letter}: {name} (cell {cell}, {rounds} round{'s' * (rounds != 1)})"
    for key, a, b in found.differences:
        yield f"  {key}: {_value(a)} | {_value(b)}"
    if not found.differences:
        yield "  nothing differs in settings, code and machine"
    a, b = map(units.duration, found.seconds)
    low, high = found.interval
    ends = f", 95 % {low:.3f} to {high:.3f}" if low < high else ", no interval from these rounds"
    yield f"step: A {a}, B {b}; B takes {found.ratio:.3f} of A's time{ends}"
    yield f"significant: {found.verdict} (A/A noise {100 * found.noise:.1f} %)"
    yield f"comparable: {'no: ' + '; '.join(found.obstacles) if found.obstacles else 'yes'}"


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def main() -> int:
    """Exit code 0; 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        prog="bagua-bench compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    given = parser.parse_args()
    try:
        sides = (side(given.a), side(given.b))
        found, left = pairs(*sides)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    around = [group for each in sides for group in each.around]
    print("\n\n".join("\n".join(text(compare(a, b, around))) for a, b in found))
    if left:
        print(f"\n{len(found)} pairs; {left} cells have no counterpart, or several")
    return 0


if __name__ == "__main__":
    sys.exit(main())
