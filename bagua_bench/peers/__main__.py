"""Peers that are not installed with the suite: `bagua-bench peers build horovod`. No torch import."""

from __future__ import annotations

import argparse
import sys

from bagua_bench.peers import build


def main() -> int:
    """Exit code 0 if the peer is installed; 1 if it could not be built."""
    parser = argparse.ArgumentParser(prog="bagua-bench peers", description="Peers that the suite does not bring.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("build", help="build a peer's wheel, keep it in the user's cache, and install it")
    verb.add_argument("peer", choices=sorted(build.PEERS))
    verb.add_argument("--again", action="store_true", help="build it even if the cache has a wheel")
    asked = parser.parse_args()
    try:
        wheel, built = build.PEERS[asked.peer](asked.again)
        build.install(wheel)
    except build.BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{asked.peer}: {'built' if built else 'had been built'}, and installed from {wheel}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
