"""Skips what needs the compiled transport, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bagua_bench import libraries
from bagua_bench.transport.harness.pair import Pair

Start = Callable[..., Pair]
NEWEST = "ncclNetPlugin_v12"


@pytest.fixture(scope="session")
def built() -> tuple[Path, Path]:
    """The harness and the plugin."""
    try:
        return libraries.harness(), libraries.plugin()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def start(built: tuple[Path, Path]) -> Iterator[Start]:
    """Makes pairs of harness processes that end with the test."""
    with ExitStack() as stack:

        def make(symbol: str = NEWEST, environment: Mapping[str, str] | None = None) -> Pair:
            return stack.enter_context(Pair(*built, symbol, environment))

        yield make
