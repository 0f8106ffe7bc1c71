"""Human units."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bagua_bench.configuration.units import (
    BITS_PER_SECOND,
    BYTES,
    LATENCY,
    RATES,
    SECONDS,
    SIZES,
    amount,
    duration,
    parse,
)
from tests.catalogue import resolved


def test_values() -> None:
    assert parse("k", "10MiB", BYTES) == 10 * 2**20
    assert parse("k", "1.5 GB", BYTES) == 1.5e9
    assert parse("k", "0B", BYTES) == 0
    assert parse("k", "100Mbit", BITS_PER_SECOND) == 1e8
    assert parse("k", "5ms", SECONDS) == 0.005


@pytest.mark.parametrize("text", ["10", "MiB", "ten MiB", "10 parsec", ""])
def test_errors_name_key_value_and_units(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^run\.x={text}: expected a number and a unit \(B, kB"):
        parse("run.x", text, BYTES)


@pytest.mark.parametrize(("text", "units", "example"), [
    ("1gb", BITS_PER_SECOND, "1gbit"), ("1gbps", BITS_PER_SECOND, "1gbit"), ("2.5 Mbit/s", BITS_PER_SECOND, "2.5mbit"),
    ("fast", BITS_PER_SECOND, "10mbit"), ("5", LATENCY, "5ms"), ("5msec", LATENCY, "5ms"), ("60", SECONDS, "60s"),
    ("10", BYTES, "10MiB"), ("10M", BYTES, "10MB"),
])  # fmt: skip
def test_the_example_is_what_was_probably_meant(text: str, units: Mapping[str, float], example: str) -> None:
    with pytest.raises(ValueError, match=rf"as in {example}$"):
        parse("k", text, units)


@pytest.mark.parametrize("text", ["-1MiB", "-1", "- 1 MiB"])
def test_what_is_negative_is_called_so(text: str) -> None:
    with pytest.raises(ValueError, match=f"^k={text}: must not be negative; expected a number and a unit"):
        parse("k", text, BYTES)


def test_results_have_units_of_their_size() -> None:
    assert [amount(value, SIZES) for value in (0, 128, 5e3, 1.2345e6, 2e9)] == [
        "0 B",
        "128 B",
        "5 kB",
        "1.234 MB",
        "2 GB",
    ]
    assert amount(3.862e8, RATES) == "386.2 Mbit/s"
    assert [duration(value) for value in (2e-4, 1.5, 300)] == ["0.2 ms", "1.5 s", "5 min"]


def test_times_of_computing_may_have_units() -> None:
    asked = ("mode=simulate", "task=vgg16")
    assert resolved(*asked, "task.step_seconds=400ms") == resolved(*asked, "task.step_seconds=0.4")
    known = "compute.step_seconds.vgg16.seconds"
    assert resolved(*asked, f"{known}=400ms") == resolved(*asked, f"{known}=0.4")
