"""The transport's table of measurements: every case with its baseline in the same interleaved run, as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from statistics import fmean
from typing import Any

from bagua_bench import libraries
from bagua_bench.network.accuracy import iperf3
from bagua_bench.results import provenance
from tools.transport import bench, compiled, lossy, shaped, torch_bench, torch_rank
from tools.transport.bench import PLAIN, Plugin, Sample
from tools.transport.pair import GROUP

MIB = 2**20
_SPREAD = tuple(0.4e9 + k * 1.2e9 / 7 for k in range(8))
_FLOWS = {
    "one of four flows slow": (1.6e9, 1.6e9, 1.6e9, 0.32e9),
    "eight unequal flows": _SPREAD,
    "four equal flows": (1.6e9,) * 4,
    "eight equal flows": (1.2e9,) * 8,
    "four equal flows, helper thread": (1.6e9,) * 4,
}
_LINKS = {"one link": 6.4e9, "one link, helper thread": 6.4e9, "one link, torch face": 6.4e9}
_HELPED = ", helper thread"  # the caller sleeps for a millisecond then, otherwise for 20 us
_FACE = ", torch face"  # drives the group behind the torch backend, not NCCL's plugin; the caller waits in it
_SECONDS = 1.0  # that a transfer should take
_CHANGING_SECONDS = 4.0  # the same where limits change
LENDS, COPIES = "without a copy where it can be", "with copies"
_IPERF3 = 128 << 10  # bytes that iperf3 writes at once
_TORCH: dict[str, dict[str, Any]] = {
    "torch flow-limited": {"flow": 1.6e9},
    "torch slow flows": {"flow": 0.4e9},
    "torch unlimited": {},
    "torch 1gbit": {"link": 1e9},
    "torch 4 ranks flow-limited": {"flow": 1.6e9, "per_site": 2},
    "torch 4 ranks slow flows": {"flow": 0.4e9, "per_site": 2},
    "torch 4 ranks": {"per_site": 2},
    "torch 4 ranks 1gbit": {"link": 1e9, "per_site": 2},
}
_OPERATIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send")
_TORCH |= {
    "torch operations": {"operations": _OPERATIONS},
    "torch operations, 4 ranks": {"operations": _OPERATIONS[:-1], "per_site": 2},
}
_SIZES = ((4096, 40), (MIB, 20), (16 * MIB, 8), (64 * MIB, 4), (256 * MIB, 2))  # bytes, and how often in a round
_FEW_SIZES = ((16, 100), (65536, 40), (MIB, 20), (64 * MIB, 4))
_CHANGING = {
    "four flows, another one slow every 200 ms": tuple(
        tuple(0.04e9 if step == flow else 0.4e9 for step in range(4)) for flow in range(4)
    ),
    "one flow, fast and slow": ((0.4e9, 0.04e9),),
}
CASES = (*_FLOWS, *_LINKS, *_CHANGING, "unlimited", "latency", "latency, torch face", *_TORCH)
IMPAIRED = "delay and loss"  # takes longer than all others, so it runs only by name


def run(case: str, rounds: int) -> dict[str, Any]:
    """Measure one case and compare it with its baseline."""
    calls: dict[str, Callable[[int], dict[str, Any]]] = {
        "unlimited": _unlimited,
        "latency": lambda r: _latency(r, _plugin(4)),
        "latency, torch face": lambda r: _latency(r, _group(4)),
        IMPAIRED: lossy.run,
    }
    calls |= {name: partial(_changed, flows) for name, flows in _CHANGING.items()}
    calls |= {name: partial(_torch, **network) for name, network in _TORCH.items()}
    began = datetime.now(timezone.utc)
    found = calls[case](rounds) if case in calls else _limited(case, rounds)
    machine = provenance.machine()
    return {
        "case": case,
        "began": began.isoformat(timespec="seconds"),
        "rounds": rounds,
        "congestion": shaped.CONGESTION,
        "machine": {key: machine[key] for key in ("processor", "cores", "kernel") if key in machine},
        **found,
    }


def _plugin(streams: int, helpers: int = 0) -> Plugin:
    variables = {"BAGUA_NET_STREAMS": str(streams), "BAGUA_NET_HELPERS": str(helpers)}
    return Plugin(libraries.plugin(), "ncclNetPlugin_v12", variables)


def _group(streams: int) -> Plugin:
    return Plugin(libraries.plugin(), GROUP, {"BAGUA_NET_STREAMS": str(streams)})


def _limited(case: str, rounds: int) -> dict[str, Any]:
    rates, link = _FLOWS.get(case, ()), _LINKS.get(case)
    ideal = shaped.payload_rate(rates or (link or 0.0,))
    helped = case.endswith(_HELPED)
    idle, plugin = 1000 if helped else 20, _plugin(len(rates) or 4, int(helped))
    if case.endswith(_FACE):
        plugin = _group(4)
    found: list[Sample] = []
    for size, window in ((MIB, 4), (16 * MIB, 2)):
        messages = [(size, window, max(20, int(ideal * _SECONDS / size)))]
        found += bench.streams(compiled.harness(), plugin, messages, rates, rounds, idle, link=link)
    rows = bench.summary(found)
    for row in rows:
        row["of_ideal"] = row["rate"] / ideal
    plain = {(row["size"], row["window"]): row for row in rows if row["transport"] == PLAIN}
    for row in rows:
        row["cpu_times_plain"] = row["cpu_per_gb"] / plain[row["size"], row["window"]]["cpu_per_gb"]
    limits = {"rates": rates, "link": link, "ideal": ideal}
    return {**limits, "idle": idle, "summary": rows, "samples": [asdict(s) for s in found]}


def _changed(flows: Sequence[Sequence[float]], rounds: int) -> dict[str, Any]:
    """With and without copies, in turn. The ideal: at any time as much as all flows then may carry."""
    means = [fmean(limits) for limits in flows]
    ideal = shaped.payload_rate(means)
    found: list[Sample] = []
    for number in range(rounds):
        for name, extra in ((LENDS, {}), (COPIES, {"BAGUA_NET_ZERO_COPY": "0"})):
            plugin = _plugin(len(flows))
            plugin.environment = {**plugin.environment, **extra}
            for size, window in ((MIB, 4), (16 * MIB, 2)):
                messages = [(size, window, max(10, int(ideal * _CHANGING_SECONDS / size)))]
                samples = bench.streams(compiled.harness(), plugin, messages, means, plain=False, changing=flows)
                found += [replace(one, transport=name, round=number) for one in samples]
    rows = bench.summary(found)
    for row in rows:
        row["of_ideal"] = row["rate"] / ideal
    return {"flows": flows, "ideal": ideal, "summary": rows, "samples": [asdict(s) for s in found]}


def _unlimited(rounds: int) -> dict[str, Any]:
    messages = [(size * MIB, 4 if size < 16 else 2, max(20, 1500 // size)) for size in (1, 4, 16, 64)]
    found: list[Sample] = []
    for number in range(rounds):
        samples = bench.streams(compiled.harness(), _plugin(4), messages)
        found += [replace(sample, round=number) for sample in samples]
        with shaped.pair() as (a, b):
            rate = iperf3(a.prefix, b.prefix, b.address)
        if rate:
            found.append(Sample("iperf3", _IPERF3, 1, number, rate=rate / 8))
    return {"summary": _beside_plain(found, "rate"), "samples": [asdict(s) for s in found]}


def _latency(rounds: int, plugin: Plugin) -> dict[str, Any]:
    found = list(bench.latencies(compiled.harness(), plugin, (8, 8192), rounds, count=3000))
    return {"summary": _beside_plain(found, "half_round_trip"), "samples": [asdict(s) for s in found]}


def _beside_plain(found: list[Sample], key: str) -> list[dict[str, Any]]:
    rows = bench.summary(found)
    plain = {row["size"]: row[key] for row in rows if row["transport"] == PLAIN}
    return [{**row, "times_plain": row[key] / plain[row["size"]]} if row["size"] in plain else row for row in rows]


def _torch(rounds: int, operations: Sequence[str] = ("all_reduce",), **network: Any) -> dict[str, Any]:
    sizes = _FEW_SIZES if len(operations) > 1 else _SIZES
    asked = [(operation, size, repeat) for operation in operations for size, repeat in sizes]
    rows = torch_bench.compare(asked, rounds, **network)
    return {"network": network, "summary": rows}


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The record as lines for a reader."""
    for row in record["summary"]:
        if "loss" in row:
            yield (
                f"{row['congestion']}, loss {row['loss'] * 100:g} %: {row['rate'] / 1e6:.1f} MB/s, plain connection "
                + (f"{row['plain'] / 1e6:.1f} MB/s, {row['times_plain']:.2f} x")
            )
            continue
        if "times_gloo" in row:
            times = [f"{row[key] * 1e3:9.3f} ms" for key in torch_rank.BACKENDS]
            what = f"{row['operation']}, {row['ranks']} ranks, {row['bytes']:>10,} B"
            yield f"{what}: {times[0]}, gloo {times[1]}, {row['times_gloo']:.2f} x gloo"
            continue
        ratios = [f"{key} {row[key]:.3f}" for key in ("of_ideal", "times_plain", "cpu_times_plain") if key in row]
        value = f"{row['half_round_trip'] * 1e6:.1f} us" if row["half_round_trip"] else f"{row['rate'] / 1e9:.3f} GB/s"
        yield f"{row['transport']:28} {row['size']:>10,} B x {row['window']}: {value}; {', '.join(ratios)}"
