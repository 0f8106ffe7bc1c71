"""`bagua-bench report [CAMPAIGN ...] [--results DIR] [--out FILE]`: records and figures as one HTML page.

The page needs nothing else, and no network. It begins with the decision map, if there is one. Figures show values under
the pointer and hide systems; on paper they are still. Every record stands beside what was asked for, what was measured,
its machine and what disturbed it. Without CAMPAIGN, it shows all campaigns that have records.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import matplotlib
import pandas as pd

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import Cell
from bagua_bench.console import display, outcome
from bagua_bench.figures import decision_map, drawing, style
from bagua_bench.figures.choice import module_of
from bagua_bench.machine.scale import scale_model
from bagua_bench.results import records
from bagua_bench.results.records import Record

_PAGE = Path(__file__).with_name("report.html")
_COLUMNS = (
    "task",
    "algorithm",
    "differs in",
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
    "flags",
)
_STILL = 100  # dots per inch


def page(campaigns: dict[str, Sequence[Record]], title: str = "Results") -> str:
    """The HTML page with some campaigns' records, and their figures as far as these can be drawn."""
    from plotly.offline import get_plotlyjs

    everyone = [record for found in campaigns.values() for record in found]
    statuses = ", ".join(f"{number} {status}" for status, number in Counter(r["status"] for r in everyone).items())
    return Template(_PAGE.read_text()).substitute(
        title=escape(title),
        summary=f"{len(everyone)} records of {len(campaigns)} campaigns: {statuses}.",
        links="\n".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in campaigns),
        map=_map(campaigns),
        campaigns="\n".join(_campaign(name, found) for name, found in campaigns.items()),
        library=get_plotlyjs(),
    )


def _campaign(name: str, found: Sequence[Record]) -> str:
    open_, about = "" if len(found) > 40 else " open", escape(_about(name))
    search = f'<p class="filter"><label>Show records with <input type="search" name="{escape(name)}"></label></p>'
    rows = f"<details{open_}><summary>{len(found)} records</summary>{search}{_table(found)}</details>"
    figures = "\n".join(_figures(name, found))
    return f'<section id="{escape(name)}">\n<h2>{escape(name)}</h2>\n<p>{about}</p>\n{figures}\n{rows}\n</section>'


def _about(name: str) -> str:
    """The comment at the beginning of a campaign's file; empty for runs of none."""
    path = conf_folder.FOLDER / "campaign" / f"{name}.yaml"
    lines = path.read_text().splitlines() if path.exists() else []
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def _figures(name: str, found: Sequence[Record]) -> Iterator[str]:
    try:
        module = import_module(module_of(name))
        data = module.table(records.latest(found))
    except (ValueError, FileNotFoundError, KeyError) as error:
        yield f"<p>No figure: {escape(str(error))}</p>"
        return
    for part, rows in (module.parts(data) if hasattr(module, "parts") else {"": data}).items():
        yield _figure(module, rows, f"{name} {part}".strip())


def _figure(module: ModuleType, rows: pd.DataFrame, name: str) -> str:
    """Interactive, and beside it the still one, which is what is printed."""
    from bagua_bench.report.interactive import plot

    drawn = drawing.figure(module, rows)
    spec = plot(drawn).to_json().replace("</", "<\\/")
    still = io.BytesIO()
    with matplotlib.rc_context(style.LOOK):
        drawn.savefig(still, format="png", dpi=_STILL)
    said = escape(f"{name}: {drawing.caption(module, rows)}")
    source = f"data:image/png;base64,{base64.b64encode(still.getvalue()).decode()}"
    moving = f'<div class="plot" role="img" aria-label="{said}"><script type="application/json">{spec}</script></div>'
    return f'<figure>{moving}<img class="static" alt="{said}" src="{source}"><figcaption>{said}</figcaption></figure>'


def _map(campaigns: dict[str, Sequence[Record]]) -> str:
    """Which algorithm on a network and cluster that the reader chooses; empty without records of such a map.

    It is that of the first campaign whose figure is a decision map.
    """
    found = next((found for name, found in campaigns.items() if _is_map(name, found)), None)
    if found is None:
        return ""
    rows = decision_map.ranked(records.latest(found))
    chosen = {key: label for key, label in decision_map.PLACE.items() if rows[key].nunique() > 1}
    if not chosen:
        return ""
    values = [sorted(set(rows[key])) for key in chosen]
    places = {
        " ".join(f"{value:g}" for value in place): [
            [style.name(row["algorithm"]), row["speed_up"], row["step_seconds"], style.colour(row["algorithm"])]
            for row in there.sort_values("step_seconds").to_dict("records")
        ]
        for place, there in rows.groupby(list(chosen))
    }
    shown = [[float(f"{value:g}") for value in known] for known in values]
    given = json.dumps({"values": shown, "places": places})
    sliders = "\n".join(
        f'<label>{label} <input type="range" min="0" max="{len(known) - 1}" value="{len(known) // 2}"> '
        "<output></output></label>"
        for label, known in zip(chosen.values(), values, strict=True)
    )
    origin = ", ".join(str(rows[key].iloc[0]) for key in ("task", "source", "cluster", "compute"))
    best = f"Speed-up over {style.name(facts.baseline())} and time of a step ({escape(origin)})."
    table = f'<div class="scroll"><table aria-live="polite"><tbody></tbody></table></div><p>{best}</p>'
    data = f'<script type="application/json">{given}</script>'
    return f'<section id="map"><h2>Which algorithm?</h2>\n{sliders}\n{table}\n{data}</section>'


def _is_map(campaign: str, found: Sequence[Record]) -> bool:
    """Whether a campaign's declared figure is a decision map, and there are records to draw it from."""
    try:
        return import_module(module_of(campaign)) is decision_map and bool(records.latest(found))
    except (ValueError, FileNotFoundError):
        return False


def _table(found: Sequence[Record]) -> str:
    cells = records.cells_of(found)
    names = display.names(list({cell.id: cell for cell in cells}.values()))
    head = "".join(f'<th scope="col"><button>{escape(name)}</button></th>' for name in _COLUMNS)
    rows = "\n".join(
        f'<tr class="{record["source"]}">{"".join(map(_cell, _row(record, cell, names)))}</tr>'
        for record, cell in zip(found, cells, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _row(record: Record, cell: Cell, names: dict[str, str]) -> list[Any]:
    result = record["result"]
    numbers: list[Any] = [None] * 6
    if result is not None:
        low, high = result["throughput_interval"]
        step = sum(result["step_seconds"]) / len(result["step_seconds"])
        sent = records.bytes_sent(record)
        numbers = [result["throughput"], low, high, step, result["epoch_seconds"], sent / 1e6]
    network = record["network"]["measured"]
    return [
        cell.task.name,
        cell.algo.name,
        names[cell.id] if len(names) > 1 else None,
        cell.transport.label,
        record["ranks"],
        record["source"],
        *numbers,
        _asked(cell),
        outcome.measured(network) if network else None,
        f"{record['machine']['processor']}, {record['machine']['cores']} cores",
        record["round"],
        record["status"] + (f": {record['reason']}" if record["reason"] else ""),
        _Flags([*(network["flags"] if network else ()), *records.disturbed(record)]),
    ]


def _asked(cell: Cell) -> str:
    """The network asked for, and what it is in a scale model."""
    if cell.shrink == 1 and cell.haste == 1:
        return outcome.asked(cell)
    quick = f", {cell.haste:g} times as quick" if cell.haste != 1 else ""
    return f"{outcome.asked(cell)}; in the model of 1 : {cell.shrink:g}{quick}: {outcome.asked(scale_model(cell))}"


class _Flags(list[str]):
    """What is not as it should be."""


def _cell(value: Any) -> str:
    if isinstance(value, _Flags):
        return f'<td class="flag">{"<br>".join(map(escape, value))}</td>'
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:.4g}" if value < 1e5 else f"{value:,.0f}"
        return f'<td class="number" data-value="{value}">{text}</td>'
    return f"<td>{escape('-' if value is None else str(value))}</td>"


def main() -> int:
    """Write the page; exit code 2 if there is nothing to show."""
    parser = argparse.ArgumentParser(prog="bagua-bench report", description=__doc__)
    parser.add_argument("campaigns", nargs="*")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    given = parser.parse_args()
    if find_spec("plotly") is None:
        print(
            "bagua-bench report needs Plotly, which is not installed: pip install 'bagua-bench[report]'",
            file=sys.stderr,
        )
        return 2
    if not given.out.parent.is_dir():
        print(f"--out {given.out}: there is no folder {given.out.parent}", file=sys.stderr)
        return 2
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
    given.out.write_text(page(found, title=", ".join(given.campaigns) or "All campaigns"))
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
