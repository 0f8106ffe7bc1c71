"""`bagua-bench transport COMMAND`: use the transport from programs that are not the suite's."""

from __future__ import annotations

import argparse
import shlex
import sys

from bagua_bench.transport import check_gpu, environment


def main() -> int:
    """Run one command; 0 if it did what it should."""
    parser = argparse.ArgumentParser(prog="python -m bagua_bench.transport", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("env", "print the variables that make any program's NCCL use the transport"),
        ("check-gpu", "NCCL over the plugin, two ranks on one GPU"),
    ):
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--streams", type=int, default=4, help="TCP streams between two ranks (default %(default)s)")
    options = parser.parse_args()
    if options.command == "check-gpu":
        return check_gpu.run(options.streams)
    try:
        variables = environment.for_nccl(options.streams)
    except RuntimeError as error:
        print(f"bagua_bench.transport: {error}", file=sys.stderr)
        return 1
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
