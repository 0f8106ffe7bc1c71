"""Advice as text: what was assumed, the answer, a table per kind of algorithm, and what the tables do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from bagua_bench.advise import checks, reasons
from bagua_bench.advise.answer import Answer, answer, memory
from bagua_bench.advise.assumptions import assumptions
from bagua_bench.advise.levers import AS_GOOD
from bagua_bench.advise.ranking import Row, each_first
from bagua_bench.configuration import facts, units
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.units import RATES, SIZES, amount, duration, durations
from bagua_bench.configuration.variants import algorithm_part

LEGEND = """\
algorithm  a name for algo=; "22 steps stale": so old are averages when they arrive
between    what the algorithm connects: all ranks, or one rank of every server after a sum inside the server
transport  a name for transport=
bucket     the best of the bucket sizes tried (run.bucket_size=, DDP's algo.bucket_cap_mb=); some use one bucket
channels   the best number of buckets under way at a time (run.channels=)
step       simulated time of a step, mean over a training, with the warm-up that an algorithm needs
epoch      simulated time for all samples of the task, where it says how many (task.epoch= of one of your own)
x DDP      throughput over that of DDP, PyTorch's default, with the best of its bucket sizes
why        the bottleneck. "bandwidth-bound: 82% of 95% waiting" means that 95 % of a step's time is waiting, and
           an ideal bandwidth would save 82 %; "window-bound": TCP windows are most of what latency costs"""

LINES = """\
learning   what campaign=learning measured of the algorithm and of DDP; nothing of your model
memory     what a rank keeps from step to step, without activations and buffers for sending
limits     what would help most, and how many times as fast a step would be: with twice the bandwidth of the line
           (between sites, where there are several), if software could move twice as much between servers
           (cluster.physics.ring, .process), without latency, and with computing in half the time
turns      the bandwidth at which DDP is as fast, or below which it no longer is, all with the settings of the table
check      the same on this machine in a scale model: of the first, then of DDP at its best"""

_SAME = "learning what DDP learns"
_OTHER = "learning something else: compare accuracy before choosing"
_LEVERS = {
    "bandwidth": "with twice the bandwidth",
    "software": "if software moved twice as much",
    "latency": "without latency",
    "computing": "with computing in half the time",
}
_LARGER = 16.0  # times as large TCP windows


def report(
    rows: Sequence[Row], base: Cell, refused: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> str:
    """The advice for the cell `base`, from the rows of `ranking.advise`.

    refused: who cannot run, and why; arguments: those that `base` was made from.
    """
    return text(answer(rows, base, refused or {}), arguments)


def text(found: Answer, arguments: Sequence[str]) -> str:
    """An answer to read: what was assumed, the answer, its reasons, tables, and who is not in them."""
    parts = [f"{assumptions(found.base)}\n{found.transports}", headline(found), reasoning(found, arguments)]
    for title, same in ((_SAME, True), (_OTHER, False)):
        parts.append(_group(title, [row for row in found.shown if row.same_update == same], found.by_transport))
    parts += ["\n".join(f"not compared: {why}" for why in found.refused.values())]
    return "\n\n".join(part for part in parts if part)


def headline(found: Answer) -> str:
    """The fastest of those that learn what DDP learns, and what learning something else would buy."""
    first, faster = found.first, found.faster
    tied = _tied(found.same, found.share)
    lines = [
        f"fastest of those that learn what DDP learns: {_chosen(first, found.by_transport)}, {_compared(found)}{tied}"
    ]
    if faster:
        lines.append(f"faster, but learning something else: {', '.join(map(_brief, faster))}")
    return "\n".join([*lines, *_windows(found)])


def reasoning(found: Answer, arguments: Sequence[str]) -> str:
    """What the answer costs, what it depends on and how to check it, a line each."""
    named = {"learning": _learning(found), "memory": _memory(found), "limits": _limits(found)}
    named["turns"] = _crossing(found)
    lines = [f"{name}: {said}" for name, said in named.items() if said]
    lines += [f"check, emulated here: {command}" for command in checks.commands(found, arguments)]
    if facts.task(found.base.task).described and (made := checks.engine(found.first)):
        lines.append(f"in your training, beside DDP: {made} (docs/own-model.md)")
    return "\n".join(lines)


def _chosen(row: Row, by_transport: bool) -> str:
    """'bytegrad over gloo with buckets of 10 MiB and 4 channels'."""
    transport = f" over {row.transport}" if by_transport else ""
    buckets = f" with buckets of {row.bucket}" if "MiB" in row.bucket else ""
    several = f" and {row.channels} channel{'s' * (row.channels != '1')}" if row.channels else ""
    return f"{row.algorithm}{transport}{buckets}{several}"


def _compared(found: Answer) -> str:
    """How fast the first is beside DDP: at its best, at its defaults, and as its variants."""
    row, (low, high) = found.first, found.interval
    if row.algorithm == facts.baseline():
        return "than which nothing is faster"
    if found.rival is None:
        return f"{duration(row.step_seconds)} a step; DDP cannot be run so"
    far = ", extrapolated" * bool(found.beyond)
    others = {"DDP at its defaults": found.default, **found.variants}
    beside = [
        f"{_times(seconds / row.step_seconds)} times {name}"
        for name, seconds in others.items()
        if not math.isnan(seconds) and name != row.algorithm
    ]
    best = f"{_times(row.times_ddp)} times DDP at its best ({_times(low)} to {_times(high)}{far})"
    return ", ".join([best, *beside])


def _learning(found: Answer) -> str:
    """What was measured of how the first learns."""
    task = found.base.task
    model = "your model" if facts.task(task).described else task.name
    name = found.first.algorithm
    said = _learned(name)
    if not said:
        return "not measured"
    return f"{name}: {said}, a small VGG16, 3 seeds (docs/findings.md); with {model}: not measured"


def _learned(name: str) -> str:
    """What an algorithm, and the baseline, ended with where it was measured; empty if it was not."""
    if not facts.option(name).learned:
        return ""
    beside = "" if name == facts.baseline() else f" where {facts.baseline()} has {_share(facts.baseline())}"
    return f"{_share(name)} of held-out digits{beside}, in campaign=learning"


def _share(name: str) -> str:
    mean, least, most = facts.option(name).learned
    return f"{mean:g} % ({least:g} to {most:g})"


def _memory(found: Answer) -> str:
    kept, name = found.memory, found.first.algorithm
    usual = amount(kept.weights + kept.gradients + kept.optimizer, SIZES)
    more = f"{amount(kept.state, SIZES)} more" if kept.state else "nothing more"
    return f"{usual} a rank for weights, gradients and {kept.kind} in fp32; {name} keeps {more}"


def _limits(found: Answer) -> str:
    """What would help the first and DDP most."""
    return "; ".join(f"{name}: {_limit(by)}" for name, by in found.limits.items())


def _limit(by: Mapping[str, float]) -> str:
    most = max(by, key=by.__getitem__)
    said = ", ".join(f"{_times(ratio)} {_LEVERS[name]}" for name, ratio in by.items())
    name = most if by[most] > AS_GOOD else "nothing alone"
    return f"{name} (times as fast: {said})"


def _crossing(found: Answer) -> str:
    """From which bandwidth on the answer is another."""
    turn, name = found.crossing, found.challenger
    if turn is None:
        return ""
    between = " between the sites" * (found.base.network.sites > 1)
    rate = None if turn.bandwidth is None else f"{amount(turn.bandwidth, RATES)}{between}"
    as_fast = f"DDP is as fast as {name}, within {AS_GOOD - 1:.0%}"
    times = f"{name} is {_times(turn.ratio)} times DDP"
    if turn.upwards and rate is not None:
        return f"from about {rate} on {as_fast}"
    if turn.upwards and turn.both is not None:
        where = between or " of the line"
        return f"at no bandwidth{where} alone; with line and software {turn.both:.2g} times as fast {as_fast}"
    if turn.upwards:
        return f"at no bandwidth{between}; with line and software 1024 times as fast {times}"
    if rate is None:
        return f"at no bandwidth{between}: with a 1024th of it {times}"
    return f"below about {rate} {name} is faster than DDP by more than {AS_GOOD - 1:.0%}"


def _brief(row: Row) -> str:
    late = row.staleness_steps
    age = "" if math.isnan(late) else " whose averages never come" if math.isinf(late) else f", {_stale(late)}"
    gain = duration(row.step_seconds) if math.isnan(row.times_ddp) else _times(row.times_ddp)
    return f"{row.algorithm}{age} ({gain})"


def _stale(late: float) -> str:
    return "averages never come" if math.isinf(late) else f"{late:.3g} steps stale"


def _named(row: Row) -> str:
    """The algorithm's name, and how stale its averages are."""
    late = row.staleness_steps
    return f"{row.algorithm}" if math.isnan(late) else f"{row.algorithm} ({_stale(late)})"


def _tied(rows: Sequence[Row], share: float) -> str:
    """Which others are as fast within the uncertainty."""
    near = [row.algorithm for row in rows[1:] if row.step_seconds <= rows[0].step_seconds * (1 + share)]
    return f"; as fast within the model's uncertainty: {', '.join(near)}" if near else ""


def _windows(found: Answer) -> Iterator[str]:
    """What larger TCP windows would do, where these are what the first waits for; who else waits for them."""
    row = found.first
    cell = row.cell
    others = [other.algorithm for other in found.shown if other is not row and other.why.startswith("window")]
    if not row.why.startswith("window"):
        if others:
            also = "larger ones help, and more servers, as each has its own connections"
            yield f"TCP windows are what is waited for by {', '.join(dict.fromkeys(others))}: {also}"
    else:
        larger = units.text(int(cell.network.tcp_window * _LARGER), units.BYTES)
        seconds = duration(reasons.with_windows(cell, _LARGER))
        yield (
            f"TCP windows are what is waited for: with network.tcp_window={larger} a step takes {seconds} instead of "
            f"{duration(row.step_seconds)}; more servers help, too, as each has its own connections"
        )


def _group(title: str, rows: Sequence[Row], by_transport: bool) -> str:
    return "\n".join([title, *_table(rows, by_transport), *_notes(rows)]) if rows else ""


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:.0f}"


def _table(rows: Sequence[Row], by_transport: bool) -> Iterator[str]:
    """The lines of a table, its columns right-aligned."""
    columns = {
        "algorithm": [_named(row) for row in rows],
        "between": [row.between for row in rows],
        "transport": [row.transport for row in rows] if by_transport else [],
        "bucket": [row.bucket for row in rows],
        "channels": [row.channels for row in rows],
        "step": durations([row.step_seconds for row in rows]),
        "epoch": durations([row.epoch_seconds for row in rows]) if all(row.epoch_seconds for row in rows) else [],
        "x DDP": [] if all(math.isnan(row.times_ddp) for row in rows) else [_times(row.times_ddp) for row in rows],
        "why": [row.why for row in rows],
    }
    padded = []
    for name, values in columns.items():
        wide = max(map(len, (name, *values)))
        padded += [[text.rjust(wide) for text in (name, *values)]] if values else []
    yield from map(" ".join, zip(*padded, strict=True))


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    """What a row does not say about its algorithm, one line each."""
    for row in each_first(rows):
        if row.note:
            yield f"{row.algorithm}: {row.note}"
        if row.warm_up:
            yield f"{row.algorithm}: {row.warm_up:.0%} of the steps are its warm-up, uncompressed and needed to learn"
        if math.isinf(row.staleness_steps):
            yield f"{row.algorithm}: no average arrives within {row.steps} steps; every rank learns alone"
        elif row.staleness_steps >= 0:
            yield (
                f"{row.algorithm}: never waits; an average comes every {duration(row.round_seconds)} and is then "
                f"{row.staleness_steps:.3g} steps old"
            )
        if not row.same_update:
            yield f"{row.algorithm}: {_learned(row.algorithm) or 'what it learns was not measured'}"
        if state := memory(row.cell).state:
            yield f"{row.algorithm}: keeps {amount(state, SIZES)} a rank besides weights, gradients and optimizer"
        if options := _searched(row.cell):
            yield f"{row.algorithm}: with {options}, which is faster here than its own"


def _searched(cell: Cell) -> str:
    """Options other than the algorithm's own that only make it faster; 'algo.bucket_cap_mb=100'."""
    own = algorithm_part(cell.algo.name).options
    keys = {choice.partition("=")[0] for choices in facts.algorithm(cell.algo).search for choice in choices}
    changed = [key for key in sorted(keys) if cell.algo.options[key] != own[key]]
    return " ".join(f"algo.{key}={cell.algo.options[key]:g}" for key in changed)
