"""Skips what needs the compiled transport, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bagua_bench import libraries
from tools.transport import compiled
from tools.transport.pair import Pair

Start = Callable[..., Pair]
NEWEST = "ncclNetPlugin_v12"


@pytest.fixture(scope="session")
def built() -> tuple[Path, Path]:
    """The harness and the plugin."""
    try:
        return compiled.harness(), libraries.plugin()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[0, 2], ids=lambda count: f"{count} helpers")
def start(request: pytest.FixtureRequest, built: tuple[Path, Path]) -> Iterator[Start]:
    """Makes pairs of harness processes that end with the test; progress is made by the caller, or by helper threads."""
    with ExitStack() as stack:

        def make(symbol: str = NEWEST, environment: Mapping[str, str] | None = None) -> Pair:
            variables = {"BAGUA_NET_HELPERS": str(request.param), **(environment or {})}
            return stack.enter_context(Pair(*built, symbol, variables))

        yield make
