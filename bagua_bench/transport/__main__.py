"""`bagua-bench transport COMMAND`: use the transport from programs that are not the suite's."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from bagua_bench.configuration.network_shape import AUTO, MOST_STREAMS
from bagua_bench.transport import check_gpu, environment

_WATCH = """Show what the TCP connections of running jobs carry now, by the kernel's own account: of any
process, whatever its transport. Those of other network namespaces need root."""


def main() -> int:
    """Run one command; 0 if it did what it should."""
    parser = argparse.ArgumentParser(prog="python -m bagua_bench.transport", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("env", "print the variables that make any program's NCCL use the transport"),
        ("check-gpu", "NCCL over the plugin, two ranks on one GPU"),
    ):
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument(
            "--streams", type=_streams, default="4", help="TCP streams between two ranks, or auto (default %(default)s)"
        )
    _add_watch(commands)
    options = parser.parse_args()
    if options.command == "check-gpu":
        return check_gpu.run(options.streams)
    try:
        if options.command == "watch":
            from bagua_bench.transport import watch  # needs more than torch, which is all that check-gpu needs

            return watch.run(options.processes, options.seconds, options.once, options.json)
        variables = environment.for_nccl(options.streams)
    except RuntimeError as error:
        print(f"bagua_bench.transport: {error}", file=sys.stderr)
        return 1
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _add_watch(commands: Any) -> None:
    text = "show what the TCP connections of running jobs carry now"
    one = commands.add_parser("watch", help=text, description=_WATCH)
    one.add_argument(
        "processes", nargs="*", type=int, metavar="PID", help="default: yours that have loaded Bagua-Net, all of them"
    )
    one.add_argument("--seconds", type=_seconds, default=1.0, help="from one look to the next (default %(default)s)")
    one.add_argument("--once", action="store_true", help="look twice, print, and end")
    one.add_argument("--json", action="store_true", help="the same as JSON: seconds, bytes, bytes/s")


def _streams(text: str) -> str:
    if text != AUTO and not (text.isdecimal() and 1 <= int(text) <= MOST_STREAMS):
        raise argparse.ArgumentTypeError(f"{text}: allowed: 1 to {MOST_STREAMS} or {AUTO}")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: must be positive")
    return value


if __name__ == "__main__":
    sys.exit(main())
