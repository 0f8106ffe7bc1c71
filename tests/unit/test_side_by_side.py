"""The tests that run after or without others are named as they are."""

from __future__ import annotations

import pytest

from tests import side_by_side
from tests.catalogue import HOME


@pytest.mark.parametrize("name", sorted({*side_by_side.GROUPS, *side_by_side._QUIET}))
def test_what_has_a_turn_of_its_own_exists(name: str) -> None:
    file, _, begin = name.partition("::")
    assert f"def {begin}" in (HOME / file).read_text()
