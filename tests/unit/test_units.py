"""Human units."""

from __future__ import annotations

import pytest

from bagua_bench.units import BITS_PER_SECOND, BYTES, SECONDS, parse


def test_values() -> None:
    assert parse("k", "10MiB", BYTES) == 10 * 2**20
    assert parse("k", "1.5 GB", BYTES) == 1.5e9
    assert parse("k", "0B", BYTES) == 0
    assert parse("k", "100Mbit", BITS_PER_SECOND) == 1e8
    assert parse("k", "5ms", SECONDS) == 0.005


@pytest.mark.parametrize("text", ["10", "MiB", "ten MiB", "10 parsec", "-1MiB", ""])
def test_errors_name_key_value_and_units(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^run\.x={text}: expected a number and a unit \(B, kB"):
        parse("run.x", text, BYTES)
