"""State of algorithms whose communication crosses steps: saved, loaded, in other buckets, on other numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bagua_bench.comm import CountedComm
from bagua_bench.engine.engine import Engine
from tests.proofs.diloco import DiLoCo
from tests.proofs.exponential import Exponential
from tests.proofs.powersgd import PowerSGD
from tests.proofs.quadratics import LR, RANKS, STEPS, Make, Quadratics, descend
from tests.proofs.relay import RelaySum
from tests.proofs.streaming_diloco import StreamingDiLoCo
from tests.proofs.top_k import TopK
from tests.ranks import run


def in_two_parts(comm: CountedComm, make: Make, folder: Path, stop: int, first: bool, size: int) -> np.ndarray:
    """Steps up to `stop` and a checkpoint; or the rest from it."""
    model = Quadratics(comm.rank, 2)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=LR), make(), comm, bucket_size=size) as engine:
        if not first:
            engine.load(folder)
        for _ in range(stop if first else STEPS - stop):
            engine.module().backward()
            engine.step()
        if first:
            engine.save(folder)
        return torch.stack([x.detach() for x in model.parts], dim=-1).flatten().numpy().copy()


PROOFS = [DiLoCo, StreamingDiLoCo, PowerSGD, Exponential, RelaySum, TopK]


@pytest.mark.parametrize("make", PROOFS)
def test_a_checkpoint_in_the_middle_of_everything_changes_nothing(make: Make, tmp_path: Path) -> None:
    """After step 15, when a fragment sent after step 14 is on its way."""
    for first in (True, False):
        found = run("gloo", RANKS, in_two_parts, make, tmp_path / "step15", 15, first, 2**40)
    straight = run("gloo", RANKS, descend, make, 2, (-1,), False)
    for got, wanted in zip(found, straight, strict=True):
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("make", [DiLoCo, PowerSGD])
def test_a_checkpoint_goes_into_other_buckets(make: Make, tmp_path: Path) -> None:
    run("gloo", RANKS, in_two_parts, make, tmp_path / "step16", 16, True, 0)
    found = run("gloo", RANKS, in_two_parts, make, tmp_path / "step16", 16, False, 2**40)
    straight = run("gloo", RANKS, descend, make, 2, (-1,), False, 2**40)
    for got, wanted in zip(found, straight, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-13)


def kept(comm: CountedComm, make: Make, folder: Path, save: bool) -> dict[str, list[np.ndarray]]:
    """Weights and state per rank: after seven steps, or as loaded."""
    model = Quadratics(comm.rank, 2)
    with Engine(model, torch.optim.SGD(model.parameters(), lr=LR), make(), comm) as engine:
        if save:
            for _ in range(7):
                engine.module().backward()
                engine.step()
            engine.save(folder)
        else:
            engine.load(folder)
            assert engine.steps == 7
        state = engine.state_dict()["parameters"].values()
        keys = sorted({key for one in state for key in one})
        weights = [x.detach().numpy().copy() for x in model.parts]
        found = {key: [one[key].numpy().copy() for one in state] for key in keys}
        if not save:
            engine.module().backward()
            engine.step()
        return {"weights": weights, **found}


RULES = [
    (DiLoCo, {"theta": "keep", "momentum": "keep"}, "mean"),
    (TopK, {"error": "mean"}, "keep"),
    (RelaySum, {"before": "zero", "behind": "zero"}, "mean"),
]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("make", "rules", "weights"), RULES)
def test_a_checkpoint_goes_to_fewer_and_to_more_ranks(
    make: Make, rules: dict[str, str], weights: str, ranks: int, tmp_path: Path
) -> None:
    before = run("gloo", 2, kept, make, tmp_path / "two", True)
    if ranks == 2:
        return
    for after in run("gloo", ranks, kept, make, tmp_path / "two", False):
        for key, rule in {"weights": weights, **rules}.items():
            for part, got in enumerate(after[key]):
                both = [one[key][part] for one in before]
                wanted = {"keep": both[0], "mean": (both[0] + both[1]) / 2, "zero": np.zeros_like(both[0])}[rule]
                np.testing.assert_allclose(got, wanted, atol=1e-15)


class Silent(DiLoCo):
    carry = {"theta": DiLoCo.carry["theta"]}  # noqa: RUF012


def test_state_that_no_rule_is_declared_for_stays_with_its_number_of_ranks(tmp_path: Path) -> None:
    run("gloo", 2, kept, Silent, tmp_path / "two", True)
    with pytest.raises(ValueError, match=r"Silent\.carry does not say what becomes of momentum"):
        run("gloo", 1, kept, Silent, tmp_path / "two", False)
