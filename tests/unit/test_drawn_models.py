"""Models and habits drawn at random: every full-precision algorithm against one process that does it for all ranks.

50 cases in the test suite, always the same ones; 1,000 others at every call of `make nightly`.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import ALGORITHMS, Case, Step, engine_run
from tests.drawn_oracle import oracle
from tests.ranks import run

KINDS = ["linear", "twice", "tied", "frozen", "unused", "sometimes", "norm", "sliced", "convolution", "double"]


@st.composite
def steps(draw: st.DrawFn, ranks: int) -> Step:
    return Step(
        micro=draw(st.sampled_from([1, 1, 2, 3])),
        call=draw(st.sampled_from(["call", "call", "forward", "eval"])),
        clip=draw(st.booleans()),
        skip=draw(st.sampled_from([False, False, False, True])),
        evaluate=draw(st.booleans()),
        replace=draw(st.booleans()),
        reload=draw(st.booleans()),
        copy=draw(st.booleans()),
        thaw=draw(st.sampled_from([False, False, False, True])),
        gives_up=draw(st.sampled_from([None, None, None, *range(ranks)])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    algorithm = draw(st.sampled_from(sorted(ALGORITHMS)))
    ranks = draw(st.sampled_from([1, 2, 3, 4] if "pairs" in algorithm else [1, 2, 3]))
    return Case(
        algorithm=algorithm,
        ranks=ranks,
        layers=tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))),
        optimizer=draw(st.sampled_from(["sgd", "momentum", "adamw", "rmsprop"])),
        groups=draw(st.booleans()),
        schedule=draw(st.booleans()),
        max_norm=draw(st.sampled_from([None, None, 0.5])),
        bucket_size=draw(st.sampled_from([0, 200, 10**6])),
        overlap=draw(st.sampled_from([True, True, False])),
        steps=tuple(draw(st.lists(steps(ranks), min_size=1, max_size=5))),
    )


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(cases())
def test_it_trains_as_one_process_would(case: Case) -> None:
    expected = oracle(case)
    for rank, seen in enumerate(run("threads", case.ranks, engine_run, case)):
        for number, (got, wanted) in enumerate(zip(seen, expected[rank], strict=True)):
            for name, value in wanted.items():
                if "convolution" in case.layers:  # its kernels depend on where in memory a weight lies
                    torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5)
                else:
                    assert torch.equal(got[name], value), f"rank {rank}, step {number + 1}, {name}"


EVERYTHING = tuple(KINDS)
HABITS = (
    Step(micro=2, clip=True, evaluate=True),
    Step(call="forward", replace=True, reload=True),
    Step(micro=3, thaw=True, copy=True),
    Step(call="eval", gives_up=0),
    Step(skip=True),
    Step(gives_up=1, clip=True),
)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_everything_at_once_on_processes(algorithm: str) -> None:
    case = Case(algorithm, 2, EVERYTHING, "momentum", True, True, None, 200, True, HABITS)
    expected = oracle(case)
    for rank, seen in enumerate(run("gloo", 2, engine_run, case)):
        for got, wanted in zip(seen, expected[rank], strict=True):
            for name, value in wanted.items():
                torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)
