"""Writes what ranks did when as a file in Chrome's trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from bagua_bench.results.result import TRAINING, Carried, RankResult, Result


def write(path: Path, result: Result, title: str) -> None:
    """Write the spans of a result's ranks. OSError if they cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [*_events(result)]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": title}}))


def _events(result: Result) -> Iterator[dict[str, Any]]:
    """A process per rank, a thread per track; times in microseconds."""
    for number, rank in enumerate(result.ranks):
        if not rank.spans:
            continue
        name = f"rank {number}" if result.rank_counts is None else f"{_alike(result, number):g} ranks"
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
        tracks = {track: 100 * (number + 1) + place for place, track in enumerate(_tracks(rank))}
        for place, (track, thread) in enumerate(tracks.items()):
            yield {"ph": "M", "name": "thread_name", "pid": number, "tid": thread, "args": {"name": track}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": thread, "args": {"sort_index": place}}
        for span in rank.spans:
            about = {"bytes": span.nbytes, "level": span.level}
            begin, end = (_on_grid(seconds) for seconds in (span.begin, span.begin + span.seconds))
            yield {
                "ph": "X",
                "name": span.name,
                "pid": number,
                "tid": tracks[span.track],
                "ts": begin,
                "dur": end - begin,
                "args": {key: value for key, value in about.items() if value is not None},
            }
        yield from _counters(number, rank)


def _counters(number: int, rank: RankResult) -> Iterator[dict[str, Any]]:
    """The rate at which each stream sent to a peer, and segments sent again; both are 0 where nothing was noted."""
    for peer in dict.fromkeys(one.peer for one in rank.carried):
        own = [one for one in rank.carried if one.peer == peer]
        to = f"rank {peer}" if peer.isdecimal() else peer
        again, nothing = any(any(one.again) for one in own), (0.0,) * max(len(one.sent) for one in own)
        for one, following in pairwise([*own, None]):
            assert one is not None
            yield from _counted(number, to, one, again)
            end = one.begin + one.seconds
            if following is None or _on_grid(following.begin) > _on_grid(end):
                yield from _counted(number, to, Carried(peer, end, 1.0, nothing, nothing), again)


def _counted(number: int, to: str, one: Carried, again: bool) -> Iterator[dict[str, Any]]:
    begin = {"ph": "C", "pid": number, "ts": _on_grid(one.begin)}
    rates = {f"stream {k}": sent / one.seconds / 1e6 for k, sent in enumerate(one.sent)}
    yield {**begin, "name": f"MB/s to {to}", "args": rates}
    if again:
        repeated = {f"stream {k}": segments for k, segments in enumerate(one.again)}
        yield {**begin, "name": f"segments sent again to {to}", "args": repeated}


def _on_grid(seconds: float) -> float:
    """Microseconds in whole eighths, which binary numbers hold exactly.

    Perfetto cuts begin and length to nanoseconds, each by itself, and drops what then ends behind what it lies in.
    """
    return round(seconds * 8e6) / 8


def _alike(result: Result, number: int) -> float:
    """How many ranks the entry with this number stands for, with the members of its servers, which have no spans."""
    assert result.rank_counts is not None
    following = zip(result.ranks[number + 1 :], result.rank_counts[number + 1 :], strict=True)
    others = takewhile(lambda pair: not pair[0].spans, following)
    return result.rank_counts[number] + sum(count for _, count in others)


def _tracks(rank: RankResult) -> list[str]:
    """The tracks of a rank in the order in which they are shown: training first."""
    return sorted({span.track for span in rank.spans}, key=lambda track: (track != TRAINING, len(track), track))
