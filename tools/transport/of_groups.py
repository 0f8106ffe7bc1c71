"""Commands of `tools.transport` that are about groups of ranks."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bagua_bench.configuration import units
from tools.transport import crowd, far, orders, outages, packed, rough, shaped, torch_cases, tunnel, wan


def add(commands: Any) -> None:
    """Add them to a parser's commands."""
    one = _command(commands, "outages", _outages, "outages shorter than the time-out of a group of ranks; needs root")
    one.add_argument("--timeouts", default="2,5,10,30", help="seconds (default %(default)s)")
    one.add_argument("--shares", default="0.5,0.8,0.95", help="of the time-out that outages last (default %(default)s)")
    help_text = "torch's own test cases of process groups, on this and other backends"
    one = _command(commands, "torch-cases", _torch_cases, help_text)
    one.add_argument("--backends", default="gloo,bagua_net", help="the first is the standard (default %(default)s)")
    one.add_argument("--ranks", type=int, default=8)
    one.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain this")
    one = _command(commands, "crowd", _crowd, "what it takes to set up groups of many ranks", rounds=3)
    one.add_argument("--ranks", default="8,32,128", help="sizes of the groups (default %(default)s)")
    _command(commands, "encrypted", _encrypted, "what sending through WireGuard costs; needs root", rounds=5)
    help_text = "a slow pair, or a slow rank, among eight: the measured order, and others; needs root"
    one = _command(commands, "order", _order, help_text, rounds=5)
    one.add_argument("--slow", choices=orders.SLOW_ONES, help="only these (default: both)")
    help_text = "long paths: shares of the line by number of streams, from the first message on; netem or the emulator"
    one = _command(commands, "wan", _wan, help_text, rounds=5)
    _add_paths(one, losses="0%,0.01%,0.1%,1%")
    help_text = "long paths: shares of the line once a connection has begun, and after a pause; netem or the emulator"
    one = _command(commands, "later", _later, help_text, rounds=5)
    _add_paths(one, losses="0%,0.1%")
    one = _command(commands, "far", _far, "all-reduces over long paths, beside gloo; netem or the emulator", rounds=5)
    one.add_argument("--line", default="200mbit", help="its rate (default %(default)s)")
    one.add_argument("--losses", default="0%,0.1%", help="shares of packets lost (default %(default)s)")
    help_text = "all-reduces with int8 on the wire beside exact ones: times and errors; needs root"
    _command(commands, "int8", _int8, help_text, rounds=5)
    help_text = "a long path with jitter, a late connection, or a rate that changes; the emulator"
    one = _command(commands, "rough", _rough, help_text, rounds=5)
    one.add_argument("--line", default="200mbit", help="its rate (default %(default)s)")
    one = _command(commands, "left", _left, "what a foreign connection gets of a line that is filled", rounds=5)
    one.add_argument("--line", default="200mbit", help="its rate (default %(default)s)")
    one.add_argument("--round-trip", default="30ms", help="over it (default %(default)s)")


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_text: str, rounds: int | None = None
) -> argparse.ArgumentParser:
    """A command whose outcome can be written to a file; `rounds`: the default number, if it has any."""
    one: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
    if rounds is not None:
        one.add_argument("--rounds", type=int, default=rounds, help="(default %(default)s)")
    one.add_argument("--json", type=Path, help="write the outcome to this file")
    one.set_defaults(run=run)
    return one


def _add_paths(one: argparse.ArgumentParser, losses: str) -> None:
    trips = ",".join(f"{seconds * 1e3:g}ms" for seconds in wan.ROUND_TRIPS)
    one.add_argument("--lines", default="200mbit", help="rates, such as 200mbit,1gbit (default %(default)s)")
    one.add_argument("--round-trips", default=trips, help="over them (default %(default)s)")
    one.add_argument("--losses", default=losses, help="shares of packets lost (default %(default)s)")


def _outages(options: argparse.Namespace) -> int:
    if reason := shaped.unavailable():
        raise ValueError(reason)
    timeouts, shares = ([float(x) for x in text.split(",")] for text in (options.timeouts, options.shares))
    found = []
    for outage in outages.table(timeouts, shares):
        found.append(outage)
        print(outage, flush=True)
    write(options.json, outages=[asdict(outage) for outage in found])
    return 0 if all(outage.survived for outage in found) else 1


def _crowd(options: argparse.Namespace) -> int:
    sizes = [int(text) for text in options.ranks.split(",")]
    found = []
    for _ in range(options.rounds):
        for size in sizes:
            for opened in crowd.OPEN:
                found.append(crowd.gather(size, opened))
                print(found[-1], flush=True)
    table = Table("ranks", "opened", "set-up", "first", "later", "sockets", "threads", "memory")
    for one in crowd.typical(found):
        seconds = (f"{value:.3g} s" for value in (one.joined, one.first, one.usual))
        table.add_row(
            str(one.ranks), one.opened, *seconds, str(one.sockets), str(one.threads), f"{one.memory / 1e6:.3g} MB"
        )
    Console().print(table)
    write(options.json, crowds=[asdict(one) for one in found])
    return 0


def _encrypted(options: argparse.Namespace) -> int:
    if reason := tunnel.unavailable():
        raise ValueError(reason)
    found = list(tunnel.measure(options.rounds))
    table = Table("network", "way", "messages", "rate or half round trip", "over plain", "cpu-s/GB")
    for row in tunnel.table(found):
        table.add_row(*row)
    Console().print(table)
    write(options.json, in_kernel=tunnel.in_kernel(), costs=[asdict(one) for one in found])
    return 0


def _torch_cases(options: argparse.Namespace) -> int:
    backends, found = options.backends.split(","), []
    for backend in backends:
        for outcome in torch_cases.run(backend, options.ranks, options.only):
            found.append(outcome)
            print(f"{backend} {outcome.case}: {outcome.what} {outcome.reason}".rstrip(), flush=True)
    table = Table("backend", "outcome", "cases", "why")
    for backend in backends:
        for what in (torch_cases.PASSED, torch_cases.SKIPPED, torch_cases.FAILED):
            for reason, number in torch_cases.reasons(found, backend, what):
                table.add_row(backend, what, str(number), escape(reason))
    Console().print(table)
    cases: dict[str, dict[str, str]] = {}
    for one in found:
        cases.setdefault(one.case, {})[one.backend] = f"{one.what}: {one.reason}" if one.reason else one.what
    write(options.json, torch=version("torch"), cases=cases)
    return 1 if any(torch_cases.worse(found, backend, backends[0]) for backend in backends[1:]) else 0


def _order(options: argparse.Namespace) -> int:
    if reason := shaped.unavailable():
        raise ValueError(reason)
    found, table = [], Table("slow", "order of an all-reduce", "seconds", "times the best")
    for search in orders.searches(options.slow, options.rounds):
        found.append(search)
        for kind in search.kinds:
            slow, ratio = " and ".join(map(str, search.slow)), search.times_best(kind.name)
            table.add_row(slow, f"{kind.name}: {kind.way}", f"{kind.typical:.3f}", f"{ratio:.2f}")
    Console().print(table)
    write(options.json, orders=[asdict(one) for one in found])
    return 0


def _wan(options: argparse.Namespace) -> int:
    found, table = [], Table("line", "round trip", "loss", "streams", "MB/s", "of the line", "times plain")
    for one in wan.measure(*_paths(options), options.rounds):
        found.append(one)
        path = (*_path(one), f"{one.loss * 100:g} %")
        table.add_row(*path, one.way, f"{one.rate / 1e6:.2f}", f"{one.of_line:.2f}", f"{one.times_plain:.2f}")
        print(*path, one.way, f"{one.of_line:.2f} of the line", flush=True)
        write(options.json, paths=[asdict(one) for one in found])  # the rest takes long
    Console().print(table)
    return 0


def _later(options: argparse.Namespace) -> int:
    found = []
    table = Table("line", "round trip", "loss", "streams", "then, of the line", "64 MiB after idle", "expected")
    for one in wan.later(*_paths(options), options.rounds):
        found.append(one)
        path, way = (*_path(one), f"{one.loss * 100:g} %"), f"{one.way}: {one.streams}"
        times = (f"{seconds:.2f} s" for seconds in (one.after_idle, one.expected))
        table.add_row(*path, way, f"{one.of_line:.3f}", *times)
        print(*path, way, f"{one.of_line:.3f} of the line", flush=True)
        write(options.json, later=[asdict(one) for one in found])
    Console().print(table)
    return 0


def _paths(options: argparse.Namespace) -> tuple[list[float], list[float], list[float]]:
    """Lines, round trips and losses."""
    lines = [units.parse("--lines", text, units.BITS_PER_SECOND) for text in options.lines.split(",")]
    round_trips = [units.parse("--round-trips", text, units.LATENCY) for text in options.round_trips.split(",")]
    return lines, round_trips, [units.parse("--losses", text, units.FRACTION) for text in options.losses.split(",")]


def _far(options: argparse.Namespace) -> int:
    losses = [units.parse("--losses", text, units.FRACTION) for text in options.losses.split(",")]
    found, table = [], Table("line", "round trip", "loss", "all-reduce", "of the line", "gloo", "times as fast")
    for one in far.measure(units.parse("--line", options.line, units.BITS_PER_SECOND), losses, options.rounds):
        found.append(one)
        row = (*_path(one), f"{one.loss * 100:g} %", f"{one.seconds:.2f} s", f"{one.of_line:.2f}", f"{one.gloo:.2f} s")
        table.add_row(*row, f"{one.gloo / one.seconds:.1f}")
        print(*row, flush=True)
    Console().print(table)
    write(options.json, far=[asdict(one) for one in found])
    return 0


def _int8(options: argparse.Namespace) -> int:
    if reason := shaped.unavailable():
        raise ValueError(reason)
    found, table = [], Table("link", "ranks", "size", "exact", "int8", "times as fast", "error")
    for one in packed.measure(options.rounds):
        found.append(one)
        link = "unlimited" if one.link is None else f"{one.link / 1e9:g} Gbit/s"
        times = (f"{seconds * 1e3:.3g} ms" for seconds in (one.exact, one.int8))
        table.add_row(
            link, str(one.ranks), f"{one.size:,}", *times, f"{one.times_as_fast:.2f}", f"{one.error * 100:.2f} %"
        )
    Console().print(table)
    write(options.json, int8=[asdict(one) for one in found])
    return 0


def _path(one: wan.Path | wan.Later | wan.Left | rough.Rough | far.Far) -> tuple[str, str]:
    return f"{one.line / 1e6:g} Mbit/s", f"{one.round_trip * 1e3:g} ms"


def _left(options: argparse.Namespace) -> int:
    found, table = [], Table("line", "round trip", "streams", "share of a foreign connection", "with equal shares")
    line = units.parse("--line", options.line, units.BITS_PER_SECOND)
    for one in wan.left(line, units.parse("--round-trip", options.round_trip, units.LATENCY), options.rounds):
        found.append(one)
        streams = str(one.streams) if one.way.isdigit() else f"{one.way}: {one.streams}"
        table.add_row(*_path(one), streams, f"{one.share:.3f}", f"{one.fair:.3f}")
    Console().print(table)
    write(options.json, left=[asdict(one) for one in found])
    return 0


def _rough(options: argparse.Namespace) -> int:
    found, table = [], Table("path", "line", "round trip", "streams", "of the line", "times plain")
    for one in rough.measure(units.parse("--line", options.line, units.BITS_PER_SECOND), options.rounds):
        found.append(one)
        streams = one.way if one.way != "auto" else f"auto: {one.streams}"
        table.add_row(one.condition, *_path(one), streams, f"{one.of_line:.3f}", f"{one.times_plain:.2f}")
        print(one.condition, *_path(one), one.way, f"{one.of_line:.3f} of the line", flush=True)
    Console().print(table)
    write(options.json, rough=[asdict(one) for one in found])
    return 0


def write(path: Path | None, **found: Any) -> None:
    """Write the outcome of a command as JSON, with the command; nowhere if there is no path."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [path.name if word == str(path) else word for word in sys.argv[1:]]
        content = {"command": command, "kernel": platform.release(), **found}
        path.write_text(json.dumps(content, indent=1) + "\n")
