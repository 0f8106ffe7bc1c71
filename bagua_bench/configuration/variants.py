"""Other algorithms and options in a cell's place, without composing the whole configuration anew. No torch import."""

from __future__ import annotations

from collections.abc import Iterable

from bagua_bench.configuration import conf_folder, facts
from bagua_bench.configuration.cell import AlgoPart


def algorithm_part(name: str, changes: Iterable[str] = ()) -> AlgoPart:
    """The part of a cell for algo=NAME with changes such as 'hierarchical=true'; as composing them would make it."""
    from omegaconf import OmegaConf

    facts.register_resolvers()
    own = OmegaConf.create({"algo": {"name": name, **conf_folder.option("algo", name)}})
    for change in changes:
        key, _, value = change.partition("=")
        OmegaConf.update(own, f"algo.{key}", OmegaConf.from_dotlist([f"value={value}"]).value)
    plain = OmegaConf.to_container(own, resolve=True)
    assert isinstance(plain, dict)
    return AlgoPart.from_plain(plain["algo"])
