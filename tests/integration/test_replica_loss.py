"""torchft by itself: training goes on without a replica, and takes it in again."""

from __future__ import annotations

import pytest

from tools import replica_loss


def test_training_goes_on_without_a_replica_and_takes_it_in_again() -> None:
    pytest.importorskip("torchft", reason="torchft is not installed: pip install 'bagua-bench[torchft]'")
    found = replica_loss.suffer(3)
    assert found.equal
    assert min(found.refused) >= 1, "both others were in an all-reduce with the lost one"
    assert min(found.steps) > 60  # of each phase there were 20
    assert max(found.without_it, found.with_it_again) < replica_loss.LIMIT / 2, "nobody waits for a time-out"
