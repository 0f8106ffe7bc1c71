"""`python -m tools.transport COMMAND`: measure and torture the transport on its own."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bagua_bench import libraries
from bagua_bench.configuration import units
from bagua_bench.network.commands import NetworkError
from tools.transport import bench, compiled, faults, measure, nccl, nccl_sockets, of_groups, sanitize, shaped, siege
from tools.transport.bench import Plugin
from tools.transport.of_groups import write
from tools.transport.pair import HarnessError, Pair


def main() -> int:
    """Run one command; 0 if it did what it should."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # namespaces are deleted no matter how this ends
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (RuntimeError, ValueError, NetworkError) as error:
        print(f"tools.transport: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.transport", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_bench(commands)
    one = commands.add_parser("measure", help="the table of measurements, each with its baseline; needs root")
    one.add_argument(
        "--case", action="append", choices=(*measure.CASES, measure.IMPAIRED), help="only this one; may be repeated"
    )
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--json", type=Path, default=Path("results/transport/records.jsonl"), help="append to this file")
    one.set_defaults(run=_measure)
    one = commands.add_parser("sanitize", help="transfers and attacks under ASan with UBSan, and TSan; needs g++")
    one.add_argument("--strangers", type=int, default=1000)
    one.add_argument("--chunks", type=int, default=300)
    one.set_defaults(run=_sanitize)
    one = commands.add_parser("nccl", help="every version of the plugin's table through NCCL's own loader; no GPU")
    one.add_argument("--nccl", type=Path, help="libnccl.so.2 (default: that of the package nvidia-nccl-cu12 or -cu13)")
    one.add_argument("--json", type=Path, help="write the outcome to this file")
    one.set_defaults(run=_nccl)
    one = commands.add_parser("nccl-sockets", help="Bagua-Net beside NCCL's own sockets; no GPU; needs root")
    one.add_argument("--nccl", type=Path, help="libnccl.so.2 (default: as above)")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--json", type=Path, help="write the outcome to this file")
    one.set_defaults(run=_nccl_sockets)
    of_groups.add(commands)
    one = commands.add_parser("soak", help="many faults, hostile connections and bytes, checked")
    _plugin_options(one)
    one.add_argument("--faults", type=int, default=200)
    one.add_argument("--strangers", type=int, default=10_000)
    one.add_argument("--chunks", type=int, default=2_000, help="peers that send malformed chunks")
    one.add_argument("--total", default="10GB", help="bytes of random messages compared (default %(default)s)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--json", type=Path, help="write the outcome to this file")
    one.set_defaults(run=_soak)
    return parser


def _add_bench(commands: Any) -> None:
    one = commands.add_parser("bench", help="drive a NCCL net plugin between two processes")
    _plugin_options(one)
    one.add_argument("--sizes", default="1MiB,16MiB", help="message sizes (default %(default)s)")
    one.add_argument("--window", type=int, default=4, help="messages in flight (default %(default)s)")
    one.add_argument("--total", default="1GiB", help="bytes per measurement (default %(default)s)")
    one.add_argument("--rates", default="", help="limit of each flow, such as 1.6gbit,1.6gbit,0.32gbit (needs root)")
    one.add_argument("--latency", action="store_true", help="half round trips instead of throughput")
    one.add_argument("--loopback", action="store_true", help="over lo instead of a pair of namespaces")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--idle", type=int, default=20, help="idle caller: 0 spins, -1 yields, n sleeps n us")
    one.add_argument("--json", type=Path, help="write the samples to this file")
    one.set_defaults(run=_bench)


def _plugin_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lib", type=Path, help="the plugin (default: the suite's own)")
    parser.add_argument("--symbol", default="ncclNetPlugin_v12", help="its table (default %(default)s)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable for the plugin")
    parser.add_argument("--first-port", type=int, default=0, help="connections of the sender before the data's")


def _plugin(options: argparse.Namespace) -> Plugin:
    environment = dict(item.split("=", 1) for item in options.env)
    return Plugin(options.lib or libraries.plugin(), options.symbol, environment, options.first_port)


def _sanitize(options: argparse.Namespace) -> int:
    for kind in sanitize.SANITIZERS:
        sanitize.torture(kind, options.strangers, options.chunks)
        print(f"{kind}: nothing found")
    return 0


def _measure(options: argparse.Namespace) -> int:
    if reason := shaped.unavailable():
        raise ValueError(reason)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for case in options.case or measure.CASES:
        record = measure.run(case, options.rounds)
        with options.json.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        print(f"{case}:", *measure.lines(record), sep="\n  ", flush=True)
    return 0


def _bench(options: argparse.Namespace) -> int:
    plugin, harness = _plugin(options), compiled.harness()
    sizes = [int(units.parse("--sizes", text, units.BYTES)) for text in options.sizes.split(",")]
    total = units.parse("--total", options.total, units.BYTES)
    rates = [units.parse("--rates", text, units.BITS_PER_SECOND) for text in options.rates.split(",") if text]
    if not options.loopback and (reason := shaped.unavailable()):
        raise ValueError(f"{reason}; --loopback measures without")
    if rates and "BAGUA_NET_STREAMS" not in plugin.environment:
        plugin.environment = {**plugin.environment, "BAGUA_NET_STREAMS": str(len(rates))}
    if options.latency:
        found = list(bench.latencies(harness, plugin, sizes, options.rounds, veth=not options.loopback))
    else:
        messages = [(size, options.window, max(20, int(total / size))) for size in sizes]
        veth = not options.loopback
        found = list(bench.streams(harness, plugin, messages, rates, options.rounds, options.idle, veth))
    rows = bench.summary(found)
    _print(rows, shaped.payload_rate(rates) if rates else None)
    write(options.json, samples=[asdict(s) for s in found], summary=rows)
    return 0


def _print(rows: list[dict[str, Any]], ideal: float | None) -> None:
    table = Table("transport", "size", "window", "GB/s", "of ideal", "cpu-s/GB", "half round trip", "p99")
    for row in rows:
        table.add_row(
            row["transport"],
            f"{row['size']:,}",
            str(row["window"]),
            f"{row['rate'] / 1e9:.3f}" if row["rate"] else "",
            f"{row['rate'] / ideal:.3f}" if ideal else "",
            f"{row['cpu_per_gb']:.3f}" if row["rate"] else "",
            f"{row['half_round_trip'] * 1e6:.1f} us" if row["half_round_trip"] else "",
            f"{row['p99'] * 1e6:.1f} us" if row["p99"] else "",
        )
    Console().print(table)


def _soak(options: argparse.Namespace) -> int:
    plugin, harness = _plugin(options), compiled.harness()
    where = (harness, plugin.library, plugin.symbol)
    links = shaped.unavailable() is None
    found = []
    for fault in faults.run(*where, options.faults, options.seed, links):
        found.append(fault)
        print(f"fault {len(found)}: {fault}", flush=True)
    strangers = siege.of_handshake(*where, options.strangers, options.seed)
    print(strangers, flush=True)
    chunks = siege.of_chunks(*where, options.chunks, options.seed)
    print(chunks, flush=True)
    integrity = _integrity(plugin, units.parse("--total", options.total, units.BYTES), options.seed)
    print(integrity)
    peace = [s.lost == s.joined == 0 and s.before == s.after for s in (strangers, chunks)]
    good = all(f.good for f in found) and all(peace) and integrity["good"]
    outcome = {
        "good": good,
        "faults": faults.table(found),
        "strangers": asdict(strangers),
        "malformed_chunks": asdict(chunks),
        "integrity": integrity,
    }
    write(options.json, **outcome)
    return 0 if good else 1


def _library(options: argparse.Namespace) -> nccl.Nccl:
    library = options.nccl or nccl.installed()
    if library is None:
        raise ValueError("NCCL is not here: pip install --no-deps nvidia-nccl-cu12, or --nccl libnccl.so.2")
    return nccl.read(library)


def _nccl_sockets(options: argparse.Namespace) -> int:
    library, found = _library(options), []
    table = Table(
        "network", "size", "window", "transport", "GB/s or us", "cpu-s/GB", "of ideal", "Bagua-Net is ahead by"
    )
    for one in nccl_sockets.measure(library, options.rounds):
        found.append(one)
        brief = one.network == nccl_sockets.LATENCY
        value = f"{one.value * 1e6:.1f} us" if brief else f"{one.value / 1e9:.3f} GB/s"
        ideal = "" if one.of_ideal is None else f"{one.of_ideal:.2f}"
        cpu = "" if brief else f"{one.cpu_per_gb:.2f}"
        table.add_row(
            one.network, f"{one.size:,}", str(one.window), one.way, value, cpu, ideal, f"{one.own_times:.2f} x"
        )
    Console().print(table)
    rows = [asdict(one) for one in found]
    write(options.json, nccl=library.version, rounds=options.rounds, table=rows)
    return 0


def _nccl(options: argparse.Namespace) -> int:
    loader, found = _library(options), []
    for number in loader.interfaces:
        try:
            with Pair(compiled.harness(), libraries.plugin(), f"ncclNetPlugin_v{number}", nccl=loader) as pair:
                pair.link()
                pair.stream(size=2**20, count=200, window=32, check=number)
                found.append({"interface": number, "works": True, **pair.a.ask("facts")})
        except HarnessError as error:
            found.append({"interface": number, "works": False, "reason": str(error)})
        state = "found, connected, 200 messages compared" if found[-1]["works"] else found[-1]["reason"]
        print(f"NCCL {loader.version}, ncclNetPlugin_v{number}: {state}", flush=True)
    write(options.json, nccl=loader.version, interfaces=found)
    return 0 if all(one["works"] for one in found) else 1


def _integrity(plugin: Plugin, total: float, seed: int) -> dict[str, Any]:
    """Random sizes up to 8 MiB, 32 in flight, every byte compared at the receiver."""
    size, moved = 2**23, 0
    with Pair(compiled.harness(), plugin.library, plugin.symbol, plugin.environment) as pair:
        pair.link()
        while moved < total:
            try:
                _, got = pair.stream(size=size, window=32, count=200, check=seed)
            except HarnessError as error:
                return {"bytes": moved, "good": False, "error": str(error)}
            moved += got["bytes"]
            seed += 1
    return {"bytes": moved, "good": True}


if __name__ == "__main__":
    sys.exit(main())
