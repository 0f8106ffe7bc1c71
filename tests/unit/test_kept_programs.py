"""Programs that advice keeps from one question to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bagua_bench.advise import traces
from bagua_bench.machine.program import Program
from bagua_bench.simulate import rehearsal

KEY = ("scene", "code")


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The scenes that were rehearsed; programs are kept in a folder of the test."""
    found: list[str] = []

    def rehearse(scene: str) -> Program:
        found.append(scene)
        return Program(steps=(), counts=(len(found),), sent=())

    monkeypatch.setattr(rehearsal, "rehearse_scene", rehearse)
    monkeypatch.setattr(traces, "_folder", lambda: tmp_path / "programs")
    return found


def _asked_anew() -> Program:
    traces._program.cache_clear()  # as in another process
    return traces.program_of(KEY, 2)


def test_a_program_is_rehearsed_once(rehearsed: list[str]) -> None:
    assert not traces.is_known(KEY)
    assert [_asked_anew(), _asked_anew()] == [Program(steps=(), counts=(1,), sent=(), channels=2)] * 2
    assert traces.is_known(KEY)
    assert rehearsed == ["scene"]


@pytest.mark.parametrize("length", [0, 10])
def test_a_damaged_one_is_rehearsed_again(rehearsed: list[str], tmp_path: Path, length: int) -> None:
    _asked_anew()
    [kept] = tmp_path.rglob("*.pickle")
    kept.write_bytes(kept.read_bytes()[:length])
    assert _asked_anew().counts == (2,)
    assert _asked_anew().counts == (2,), "it is whole again"
    assert rehearsed == ["scene"] * 2


def test_without_a_place_to_keep_them_each_question_is_answered(rehearsed: list[str], tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("no folder")
    assert [_asked_anew().counts, _asked_anew().counts] == [(1,), (2,)]
    assert not traces.is_known(KEY)
    traces.tidy()


def test_the_oldest_go_first(rehearsed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "programs" / "of" / "long ago"
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "older", "oldest")):
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1000 - age, 1000 - age))
    monkeypatch.setattr(traces, "_MOST_BYTES", 250)
    traces.tidy()
    assert sorted(path.name for path in folder.iterdir()) == ["new", "older"]
    assert rehearsed == []
