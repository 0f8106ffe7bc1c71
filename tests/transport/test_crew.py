"""Streams over long paths: how many are used, on a clock and paths of the test's own, and what a window carries."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tools.transport import compiled

STEP = 5e-3  # seconds between two looks
Rate = Callable[[float, int], float]
"""Bytes/s that so many streams could carry at a time."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = [Path(__file__).parent / "native/stage.cpp", *sorted((compiled.TRANSPORT / "core").glob("*.cpp"))]
    target = tmp_path_factory.mktemp("crew") / "libcrew.so"
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    compiled.link(sources, ["-O1"], target)
    built = ctypes.CDLL(str(target))
    built.crew_new.argtypes, built.crew_new.restype = [ctypes.c_int, ctypes.c_double], ctypes.c_void_p
    built.crew_step.argtypes = [ctypes.c_void_p, *[ctypes.c_double] * 4, ctypes.c_int]
    built.rate_of_window.argtypes = [*[ctypes.c_uint] * 5, ctypes.c_int, ctypes.c_double]
    built.rate_of_window.restype = ctypes.c_double
    built.crew_delete.argtypes = [ctypes.c_void_p]
    return built


def sizes(
    library: ctypes.CDLL,
    streams: int,
    round_trip: float,
    line: float,
    rate: Rate,
    seconds: float,
    windows: Rate = lambda _, __: 0.0,
    waiting: Callable[[int], bool] = lambda _: True,
) -> list[int]:
    """How many streams are in use at every step; where they could carry more than the line, a queue builds up.

    Windows count over long paths only. Messages wait for room at the steps that `waiting` names.
    """
    crew, found = library.crew_new(streams, round_trip), []
    size = library.crew_step(crew, 0.0, 0.0, round_trip, 0.0, True)
    for step in range(round(seconds / STEP)):
        wanted = rate(step * STEP, size)
        seen = round_trip * (1.5 if wanted > line else 1.0)
        size = library.crew_step(crew, STEP, min(wanted, line), seen, windows(step * STEP, size), waiting(step))
        found.append(size)
    library.crew_delete(crew)
    return found


def changes(found: list[int]) -> list[int]:
    return [found[0], *[after for before, after in pairwise(found) if before != after]]


def test_where_packets_are_lost_all_streams_are_in_use_within_two_seconds(library: ctypes.CDLL) -> None:
    found = sizes(library, 160, 0.08, 125e6, lambda _, size: 0.5e6 * size, 10.0)
    assert found[0] == 80, "one for each millisecond"
    assert set(found[round(2 / STEP) :]) == {160}


def test_a_full_line_is_left_to_others(library: ctypes.CDLL) -> None:
    assert sizes(library, 160, 0.08, 25e6, lambda _, size: 25e6 * size, 60.0)[-1] == 4


def test_as_many_stay_as_the_line_has_room_for(library: ctypes.CDLL) -> None:
    """A third more than the ten of the beginning, of forty, which fill the line: a third of their round trips is a
    queue, so that a quarter of them goes, again and again."""
    found = sizes(library, 40, 0.01, 13.4e6, lambda _, size: 1e6 * size, 60.0)
    assert changes(found)[:4] == [10, 40, 30, 23]
    later = found[round(3 / STEP) :]
    steady = [size for size in later if size != 40]
    assert len(steady) > 0.9 * len(later), "trials in vain are rare"
    assert set(steady) <= set(range(10, 18))
    assert sum(steady) / len(steady) > 12


def test_streams_that_do_not_fill_the_line_stay_by_what_they_gained(library: ctypes.CDLL) -> None:
    """Something else limits forty to what 13.4 could carry: there is a quarter to spare, and no further trial soon."""
    found = sizes(library, 40, 0.01, 125e6, lambda _, size: min(1e6 * size, 13.4e6), 3.0)
    assert changes(found) == [10, 40, 16]


@pytest.mark.parametrize(("windows", "kept"), [(11e6, [10, 40, 30, 23]), (13e6, [10, 40, 10]), (0.0, [10, 40, 10])])
def test_a_trial_begins_from_what_windows_let_through_after_a_loss(
    library: ctypes.CDLL, windows: float, kept: list[int]
) -> None:
    """Ten streams still filled most of the line when it began, by a rate that is a round trip old."""
    found = sizes(library, 40, 0.01, 13e6, lambda _, size: 12.5e6 if size < 20 else 14e6, 1.6, lambda _, __: windows)
    assert changes(found) == kept


def test_what_waits_again_a_moment_later_has_waited_meanwhile(library: ctypes.CDLL) -> None:
    """As soon as a stream has room, it takes a chunk. Two measurements of 0.25 s come before the trial."""
    found = sizes(library, 40, 0.01, 125e6, lambda _, size: 1e6 * size, 0.7, waiting=lambda step: step % 2 == 0)
    assert changes(found) == [10, 40]


def test_a_pause_is_not_time_in_which_something_waits(library: ctypes.CDLL) -> None:
    """Something waits for a twentieth of the time, with 0.1 s in between."""
    found = sizes(library, 40, 0.01, 125e6, lambda _, size: 1e6 * size, 0.7, waiting=lambda step: step % 20 == 0)
    assert changes(found) == [10]


def test_what_gains_nothing_is_tried_less_and_less(library: ctypes.CDLL) -> None:
    """Something else limits them: not the streams, and not the line."""
    found = sizes(library, 40, 0.01, 125e6, lambda _, __: 20e6, 300.0)
    assert set(found) == {10, 40}
    began = [step * STEP for step, (a, b) in enumerate(pairwise(found)) if a < b]
    pauses = [b - a for a, b in pairwise(began)]
    assert 3 <= len(began) <= 7
    assert all(later > 1.5 * pause for pause, later in pairwise(pauses) if pause < 100)


def test_after_a_trial_in_vain_a_rate_that_falls_is_reason_for_another(library: ctypes.CDLL) -> None:
    """Windows that grew before the first loss: each stream carries a fifth three seconds later."""

    def rate(seconds: float, size: int) -> float:
        return 0.4e6 * size if seconds > 3 else 20e6

    found = sizes(library, 40, 0.01, 125e6, rate, 6.0)
    assert found[round(2.9 / STEP)] == 10
    assert found[-1] == 40, "though the pause was 4 s"


def test_a_rate_that_grows_by_itself_is_left_alone(library: ctypes.CDLL) -> None:
    assert set(sizes(library, 40, 0.01, 1e12, lambda seconds, _: 1e6 * 2 ** (4 * seconds), 4.0)) == {10}


def test_an_outage_ends_a_trial(library: ctypes.CDLL) -> None:
    """It tells nothing, so there is another trial soon after it."""

    def rate(seconds: float, size: int) -> float:
        return 0.0 if 0.6 < seconds < 2 else 0.4e6 * size

    found = sizes(library, 40, 0.01, 125e6, rate, 5.0)
    assert found[round(0.59 / STEP)] == 40
    assert found[round(1.9 / STEP)] == 10
    assert found[-1] == 40


NO_THRESHOLD, OPEN, RECOVERY = 2**31 - 1, 0, 3  # of the kernel: nothing was lost yet; states of congestion control


@pytest.mark.parametrize(
    ("expected", "segments", "threshold", "resting", "state", "pace"),
    [
        pytest.param(1.0e6, 100, 80, 0, OPEN, 0, id="a window per round trip"),
        pytest.param(2.0e6, 100, NO_THRESHOLD, 0, OPEN, 0, id="which doubles meanwhile in slow start"),
        pytest.param(1.0e6, 100, NO_THRESHOLD, 0, RECOVERY, 0, id="but not while it repeats what was lost"),
        pytest.param(0.5e6, 100, NO_THRESHOLD, 0, OPEN, 0.5e6, id="no more than its pace"),
        pytest.param(1.0e6, 100, 60, 300_000, OPEN, 0, id="half after a time-out's rest, and it doubles again"),
        pytest.param(0.5e6, 100, 60, 700_000, OPEN, 0, id="a quarter after two"),
        pytest.param(0.2e6, 100, 60, 3_600_000_000, OPEN, 0, id="never less than that of a new connection"),
        pytest.param(0.03e6, 3, 3, 3_600_000_000, OPEN, 0, id="unless it was less"),
    ],
)
def test_a_window_carries_what_tcp_would_send_in_a_round_trip(
    library: ctypes.CDLL, expected: float, segments: int, threshold: int, resting: int, state: int, pace: float
) -> None:
    rate = library.rate_of_window(segments, threshold, 100_000, 300_000, resting, state, pace)
    assert rate == pytest.approx(expected)
