"""bagua-bench: which distributed training algorithm and which transport, for a model, a cluster and a network."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bagua_bench.analysis.frame import load
    from bagua_bench.elastic.checkpoints import Checkpoints
    from bagua_bench.elastic.company import Company
    from bagua_bench.elastic.course import Course
    from bagua_bench.elastic.members import Members
    from bagua_bench.engine.engine import Engine
    from bagua_bench.fused.optimizer import fuse
    from bagua_bench.layers.batch_norm import synchronize_batch_norms

__all__ = ["Checkpoints", "Company", "Course", "Engine", "Members", "fuse", "load", "synchronize_batch_norms"]

_MODULES = {
    "Checkpoints": "elastic.checkpoints",
    "Company": "elastic.company",
    "Course": "elastic.course",
    "Engine": "engine.engine",
    "Members": "elastic.members",
    "fuse": "fused.optimizer",
    "load": "analysis.frame",
    "synchronize_batch_norms": "layers.batch_norm",
}

_HOME = Path(__file__).resolve().parents[1]

for _name in ("algorithms", "tasks"):
    _spec = find_spec(_name)
    if _spec is None or _spec.origin is None or Path(_spec.origin).resolve().parents[1] != _HOME:
        raise ImportError(
            f"another package named '{_name}' ({_spec and _spec.origin}) hides the one of bagua-bench in {_HOME}: "
            "uninstall it, or run from a directory that does not contain it"
        )


def __getattr__(name: str) -> Any:
    """What `__all__` names, on demand: importing the package does not import torch."""
    if name in _MODULES:
        return getattr(import_module(f"bagua_bench.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
