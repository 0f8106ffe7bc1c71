"""Algorithms with options of their own, without composing the whole configuration anew. No torch import."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import AlgoPart


def algorithm_part(name: str, changes: Iterable[str] = ()) -> AlgoPart:
    """The part of a cell for algo=NAME with changes such as 'hierarchical=true'; as composing them would make it."""
    return _part(name, tuple(changes))


@cache
def _part(name: str, changes: tuple[str, ...]) -> AlgoPart:
    from omegaconf import OmegaConf

    register_resolvers()
    own = OmegaConf.create({"algo": {"name": name, **conf_folder.option("algo", name)}})
    for change in changes:
        key, _, value = change.partition("=")
        OmegaConf.update(own, f"algo.{key}", OmegaConf.from_dotlist([f"value={value}"]).value)
    plain = OmegaConf.to_container(own, resolve=True)
    assert isinstance(plain, dict)
    return AlgoPart.from_plain(plain["algo"])


def register_resolvers() -> None:
    """Register what declarations may use: ${number:A}, 1 if A is true and 0 otherwise."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("number", lambda a: int(a is True), replace=True)
