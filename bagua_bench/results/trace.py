"""Writes what ranks did when as a file in Chrome's trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bagua_bench.results.result import TRAINING, RankResult, Result


def write(path: Path, result: Result, title: str) -> bool:
    """Write the spans of a result's ranks, if there are any; whether there were. OSError if it cannot be written."""
    events = list(_events(result))
    if not events:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": title}}))
    return True


def _events(result: Result) -> Iterator[dict[str, Any]]:
    """A process per rank, a thread per track; times in microseconds."""
    counts = result.rank_counts or (1.0,) * len(result.ranks)
    for number, (rank, count) in enumerate(zip(result.ranks, counts, strict=True)):
        if not rank.spans:
            continue
        name = f"rank {number}" if result.rank_counts is None else f"{count:g} ranks"
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
        tracks = _tracks(rank)
        for track, place in tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": number, "tid": place, "args": {"name": track}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": place, "args": {"sort_index": place}}
        for span in rank.spans:
            about = {"bytes": span.nbytes, "level": span.level}
            yield {
                "ph": "X",
                "name": span.name,
                "pid": number,
                "tid": tracks[span.track],
                "ts": span.begin * 1e6,
                "dur": span.seconds * 1e6,
                "args": {key: value for key, value in about.items() if value is not None},
            }


def _tracks(rank: RankResult) -> dict[str, int]:
    """The tracks of a rank in the order in which they are shown: training first."""
    names = sorted({span.track for span in rank.spans}, key=lambda track: (track != TRAINING, len(track), track))
    return {name: place for place, name in enumerate(names)}
