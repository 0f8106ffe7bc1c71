"""A short version of `python -m tools.kills`."""

from __future__ import annotations

import random
from pathlib import Path

from tests.emulated import leftovers, needs
from tools.kills import clear, kill_one, problems, resume


@needs("auto")
def test_whatever_is_killed_nothing_remains_and_the_campaign_resumes(tmp_path: Path) -> None:
    clear()  # removes what others left before
    before, seed = leftovers(), random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(2):
        what = kill_one(tmp_path, rng)
        assert problems(tmp_path, before) == [], f"{what}, seed {seed}"
    assert resume(tmp_path) == []
