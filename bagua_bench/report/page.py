"""`bagua-bench report [CAMPAIGN ...] [--results DIR] [--out FILE]`: records and figures as one HTML page.

The page is self-contained. Its tables can be sorted, and every number stands beside the network and the machine it
comes from. Without CAMPAIGN, it shows all campaigns that have records.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from bagua_bench.console import outcome
from bagua_bench.results import records
from bagua_bench.results.records import Record

_PAGE = Path(__file__).with_name("report.html")
_COLUMNS = (
    "task",
    "algorithm",
    "transport",
    "ranks",
    "source",
    "samples/s",
    "95 % from",
    "to",
    "step, s",
    "epoch, s",
    "MB per step and rank",
    "network asked",
    "network measured",
    "machine",
    "round",
    "status",
)


def page(campaigns: dict[str, Sequence[Record]], figures: Sequence[Path], title: str = "Results") -> str:
    """The HTML page with some campaigns' records and PNG figures."""
    total = sum(len(found) for found in campaigns.values())
    tables = [f"<h2>{escape(name)}</h2>\n{_table(found)}" for name, found in campaigns.items()]
    return Template(_PAGE.read_text()).substitute(
        title=escape(title),
        summary=f"{total} records of {len(campaigns)} campaigns",
        tables="\n".join(tables),
        figures="\n".join(_figure(path) for path in figures),
    )


def _table(found: Sequence[Record]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    rows = "\n".join(f'<tr class="{record["source"]}">{"".join(map(_cell, _row(record)))}</tr>' for record in found)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _row(record: Record) -> list[Any]:
    cell, result = records.cell_of(record), record["result"]
    numbers: list[Any] = [None] * 6
    if result is not None:
        low, high = result["throughput_interval"]
        step = sum(result["step_seconds"]) / len(result["step_seconds"])
        sent = [sum(rank.values()) for rank in result["bytes_per_step"]]
        weights = result.get("rank_counts") or [1] * len(sent)
        mean = sum(s * w for s, w in zip(sent, weights, strict=True)) / sum(weights)
        numbers = [result["throughput"], low, high, step, result["epoch_seconds"], mean / 1e6]
    status = record["status"] + (f": {record['reason']}" if record["reason"] else "")
    return [
        cell.task.name,
        cell.algo.name,
        cell.transport.name,
        record["ranks"],
        record["source"],
        *numbers,
        outcome.asked(cell),
        _measured(record["network"]["measured"]),
        f"{record['machine']['processor']}, {record['machine']['cores']} cores",
        record["round"],
        status,
    ]


def _measured(network: dict[str, Any] | None) -> str:
    if not network:
        return "-"
    return outcome.measured(network) + (f" ({len(network['flags'])} flags)" if network["flags"] else "")


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="number" data-value="{value}">{value:.4g}</td>' if value < 1e5 else _large(value)
    return f"<td>{escape('-' if value is None else str(value))}</td>"


def _large(value: float) -> str:
    return f'<td class="number" data-value="{value}">{value:,.0f}</td>'


def _figure(path: Path) -> str:
    picture = base64.b64encode(path.read_bytes()).decode()
    name = escape(path.stem)
    image = f'<img alt="{name}" src="data:image/png;base64,{picture}">'
    return f"<figure>{image}<figcaption>{name}</figcaption></figure>"


def main() -> int:
    """Write the page; exit code 2 if there is nothing to show."""
    parser = argparse.ArgumentParser(prog="bagua-bench report", description=__doc__)
    parser.add_argument("campaigns", nargs="*")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    given = parser.parse_args()
    present = sorted(path.parent.name for path in given.results.glob("*/records.jsonl"))
    missing = [name for name in given.campaigns if name not in present]
    if missing or not present:
        have = f"campaigns with records: {', '.join(present)}" if present else "no campaign has any"
        print(f"{missing[0] if missing else given.results}: there are no records; {have}", file=sys.stderr)
        return 2
    found, others = _read(given.results, given.campaigns or present)
    for reason in others:
        print(f"left out: {reason}", file=sys.stderr)
    if not found:
        return 2
    pictures = [path for name in found for path in sorted((given.results / "figures").glob(f"{name}*.png"))]
    given.out.write_text(page(found, pictures, title=", ".join(found)))
    print(f"report: {given.out} ({given.out.stat().st_size / 1e6:.1f} MB)")
    return 0


def _read(results: Path, names: Sequence[str]) -> tuple[dict[str, Sequence[Record]], list[str]]:
    """Records of the campaigns, and why files were left out: they have another schema."""
    found: dict[str, Sequence[Record]] = {}
    others = []
    for name in names:
        try:
            found[name] = records.read([results / name / "records.jsonl"])
        except ValueError as error:
            others.append(str(error))
    return found, others
