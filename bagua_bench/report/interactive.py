"""A drawn figure as an interactive one: the same artists, handed from matplotlib to Plotly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator
from plotly import graph_objects

_MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "<": "triangle-left",
    ">": "triangle-right", "D": "diamond", "d": "diamond-tall", "P": "cross", "X": "x", "*": "star", "p": "pentagon",
    "h": "hexagon", "H": "hexagon2", "8": "octagon", "x": "x-thin-open", "+": "cross-thin-open", "1": "y-down-open",
    "2": "y-up-open", "3": "y-left-open", "4": "y-right-open", "|": "line-ns-open", ".": "circle",
}  # fmt: skip
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_HATCHES = {"//": "/", "///": "/", "..": ".", "xx": "x"}
_HEIGHT = 460  # pixels


def plot(drawn: Figure) -> graph_objects.Figure:
    """The same lines, bars, areas, fields, intervals and texts, with values under the pointer.

    A system can be hidden by its name in the legend.
    """
    found = graph_objects.Figure()
    layout: dict[str, Any] = {"height": _HEIGHT, "barmode": "overlay", "hovermode": "closest", "title": {"text": ""}}
    layout |= {"margin": {"t": 50, "r": 20}, "shapes": [], "annotations": [], "paper_bgcolor": "rgba(0,0,0,0)"}
    layout |= {"plot_bgcolor": "rgba(0,0,0,0)", "legend": {"itemsizing": "constant"}}
    panels = [axes for axes in drawn.axes if _host(axes, drawn.axes) is axes]
    shown: set[str] = set()
    for number, axes in enumerate(drawn.axes, 1):
        host = _host(axes, drawn.axes)
        across = _name("x", panels.index(host))
        upwards = _name("y", panels.index(host)) if host is axes else f"y{number + len(panels)}"
        for trace in _traces(axes):
            name = trace.get("name")
            trace["showlegend"] = name is not None and name not in shown
            shown |= {name} if name else set()
            found.add_trace({**trace, "xaxis": across, "yaxis": upwards})
        layout["shapes"] += _shapes(axes, across, upwards)
        layout["annotations"] += _texts(axes, across, upwards)
        layout[_key(upwards)] = _axis(axes, "y", across)
        if host is axes:
            share, gap = 1 / len(panels), 0.06 if len(panels) > 1 else 0.0
            left = panels.index(axes) * share
            layout[_key(across)] = {**_axis(axes, "x", upwards), "domain": [left, left + share - gap]}
            if title := axes.get_title(loc="left") or axes.get_title():
                layout["annotations"].append(_title(title, left))
        else:
            layout[_key(upwards)] |= {"overlaying": _name("y", panels.index(host)), "side": "right", "showgrid": False}
    found.update_layout(layout)
    return found


def _host(axes: Axes, everyone: Sequence[Axes]) -> Axes:
    """The first of the axes in the same place, whose horizontal axis they share."""
    return next(one for one in everyone if one.get_subplotspec() == axes.get_subplotspec())


def _name(letter: str, number: int) -> str:
    return letter if number == 0 else f"{letter}{number + 1}"


def _key(name: str) -> str:
    """'y2' -> 'yaxis2'."""
    return f"{name[0]}axis{name[1:]}"


def _title(text: str, left: float) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": left, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
    return {**place, "text": text.replace("\n", "<br>"), "showarrow": False, "align": "left"}


def _axis(axes: Axes, letter: str, anchor: str) -> dict[str, Any]:
    axis = axes.xaxis if letter == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    logarithmic = axis.get_scale() == "log"
    ends = [float(np.log10(low)), float(np.log10(high))] if logarithmic else [low, high]
    found = {"title": {"text": axis.get_label_text()}, "anchor": anchor, "range": ends, "showgrid": letter == "y"}
    found |= {"type": "log" if logarithmic else "linear", "zeroline": False, "automargin": True}
    if isinstance(axis.get_major_locator(), FixedLocator):
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        names = axis.get_major_formatter().format_ticks(ticks)
        found |= {"tickvals": ticks, "ticktext": [name.replace("\n", "<br>") for name in names]}
    return found


def _traces(axes: Axes) -> Iterator[dict[str, Any]]:
    inside: set[int] = set()
    for container in axes.containers:
        if isinstance(container, BarContainer):
            yield _bars(container)
        elif isinstance(container, ErrorbarContainer):
            line, caps, _ = container.lines
            inside |= {id(part) for part in (line, *caps)}
            if line is not None:  # otherwise a bar's, which has it, too
                yield _line(line, container, str(container.get_label()))
    for area in axes.collections:
        if isinstance(area, PolyCollection):
            yield _area(area)
    for line in axes.lines:
        if id(line) not in inside and line.get_transform() == axes.transData and len(_values(line.get_xdata())):
            yield _line(line, None, str(line.get_label()))


def _named(label: str) -> dict[str, Any]:
    """A name in the legend; artists without one have labels that begin with an underscore."""
    if not label or label.startswith("_"):
        return {"hoverinfo": "x+y"}
    name = label.replace("\n", " ")
    return {"name": name, "legendgroup": name}


def _line(line: Line2D, container: ErrorbarContainer | None, label: str) -> dict[str, Any]:
    colour = to_hex(line.get_color())
    marked, lined = line.get_marker() in _MARKERS, line.get_linestyle() in _DASHES
    hollow = str(line.get_markerfacecolor()).lower() == "none"
    symbol = _MARKERS.get(str(line.get_marker()), "circle")
    symbol += "-open" if hollow and not symbol.endswith("-open") else ""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "+".join(["lines"] * lined + ["markers"] * marked) or "lines",
        "x": _values(line.get_xdata()),
        "y": _values(line.get_ydata()),
        "opacity": line.get_alpha() or 1.0,
        "line": {
            "color": colour,
            "dash": _DASHES.get(str(line.get_linestyle()), "solid"),
            "width": line.get_linewidth(),
        },
        "marker": {
            "color": colour,
            "size": 8,
            "symbol": symbol,
        },
        **_named(label),
    }
    if line.get_drawstyle().startswith("steps"):
        trace["line"]["shape"] = "hv"
    if container is not None and container.lines[2]:
        trace["error_y"] = _interval(container, trace["y"])
    return trace


def _interval(container: ErrorbarContainer, middle: Sequence[float]) -> dict[str, Any]:
    ends = [sorted(segment[:, 1]) for segment in container.lines[2][0].get_segments() if len(segment)]
    if len(ends) != len(middle):
        return {}
    above = [high - y for (_, high), y in zip(ends, middle, strict=True)]
    below = [y - low for (low, _), y in zip(ends, middle, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3}


def _bars(container: BarContainer) -> dict[str, Any]:
    patches = container.patches
    first, heights = patches[0], [float(patch.get_height()) for patch in patches]
    hollow = to_rgba(first.get_facecolor())[3] == 0
    trace: dict[str, Any] = {
        "type": "bar",
        "x": [float(patch.get_x() + patch.get_width() / 2) for patch in patches],
        "y": heights,
        "width": [float(patch.get_width()) for patch in patches],
        "opacity": first.get_alpha() or 1.0,
        "marker": {
            "color": "rgba(0,0,0,0)" if hollow else to_hex(first.get_facecolor()),
            "line": {"color": to_hex(first.get_edgecolor()), "width": 1.5 if hollow else 0.6},
            "pattern": {"shape": _HATCHES.get(first.get_hatch() or "", "")},
        },
        **_named(str(container.get_label())),
    }
    if container.errorbar is not None and container.errorbar.lines[2]:
        trace["error_y"] = _interval(container.errorbar, heights)
    return trace


def _area(area: PolyCollection) -> dict[str, Any]:
    corners = np.asarray(area.get_paths()[0].vertices, dtype=float)
    red, green, blue, _ = np.asarray(area.get_facecolor(), dtype=float)[0]
    fill = f"rgba({255 * red:.0f},{255 * green:.0f},{255 * blue:.0f},0.15)"
    place = {"x": _values(corners[:, 0]), "y": _values(corners[:, 1])}
    return {"type": "scatter", "mode": "none", "fill": "toself", "fillcolor": fill, "hoverinfo": "skip", **place}


def _shapes(axes: Axes, across: str, upwards: str) -> list[dict[str, Any]]:
    """Fields of a map, and lines across all of the axes."""
    bars = {id(patch) for one in axes.containers if isinstance(one, BarContainer) for patch in one.patches}
    found: list[dict[str, Any]] = []
    for patch in axes.patches:
        if id(patch) not in bars and isinstance(patch, Rectangle):
            x, y = patch.get_xy()
            corners = {"x0": x, "y0": y, "x1": x + patch.get_width(), "y1": y + patch.get_height()}
            fill = {"fillcolor": to_hex(patch.get_facecolor()), "opacity": patch.get_alpha() or 1.0, "layer": "below"}
            place = {"xref": across, "yref": upwards, "line": {"color": "white"}}
            found.append({"type": "rect", **place, **corners, **fill})
    for line in axes.lines:
        if line.get_transform() != axes.transData:
            y = float(np.asarray(line.get_ydata())[0])
            ends = {"xref": f"{across} domain", "x0": 0, "x1": 1, "yref": upwards, "y0": y, "y1": y}
            dash = _DASHES.get(str(line.get_linestyle()), "solid")
            found.append({"type": "line", "line": {"color": "grey", "width": 1, "dash": dash}, **ends})
    return found


def _texts(axes: Axes, across: str, upwards: str) -> list[dict[str, Any]]:
    found = []
    for text in axes.texts:
        x, y = getattr(text, "xy", text.get_position())
        height = float(np.log10(y)) if axes.get_yscale() == "log" else float(y)
        width = float(np.log10(x)) if axes.get_xscale() == "log" else float(x)
        above = {"yshift": 10} if text.get_verticalalignment() != "center" else {}
        place = {"xref": across, "yref": upwards, "x": width, "y": height, **above}
        found.append({**place, "text": text.get_text().replace("\n", "<br>"), "showarrow": False, "font": {"size": 11}})
    return found


def _values(given: Any) -> list[float]:
    return [float(value) for value in np.asarray(given, dtype=float)]
