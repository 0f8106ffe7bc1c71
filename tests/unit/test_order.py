"""The in-order scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_bench.engine.order import InOrder


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes), st.permutations([(b, m) for b, n in enumerate(sizes) for m in range(n)])
        )
    )
)
def test_any_order_of_readiness_launches_in_registered_order(case: tuple[list[int], list[tuple[int, int]]]) -> None:
    sizes, arrivals = case
    launched: list[int] = []
    seen: set[tuple[int, int]] = set()
    order = InOrder([range(n) for n in sizes], launched.append)
    for bucket, member in arrivals:
        order.ready(bucket, member)
        seen.add((bucket, member))
        complete = [all((b, m) in seen for m in range(n)) for b, n in enumerate(sizes)]
        ready = complete.index(False) if False in complete else len(complete)
        assert launched == list(range(ready))
    assert order.missing() == []
    order.reset()
    assert len(order.missing()) == len(arrivals)


def test_twice_is_an_error() -> None:
    order = InOrder([["a", "b"]], lambda index: None)
    order.ready(0, "a")
    with pytest.raises(RuntimeError, match=r"no_sync\(\)"):
        order.ready(0, "a")
