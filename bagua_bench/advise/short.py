"""Short ways to say which model is meant. No torch import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bagua_bench.configuration import conf_folder

SHORT = {"model.parameters": "task.parameters", "model": "task.model"}
"""Keys that stand for others, of the task that is described instead of chosen."""


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments with their keys as the configuration has them, and with the task that a short key means."""
    pairs = [text.partition("=") for text in arguments]
    longer = [f"{SHORT.get(key, key)}{equals}{value}" for key, equals, value in pairs]
    keys = {text.partition("=")[0] for text in longer}
    if keys & {*SHORT.values()} and "task" not in keys:
        return [f"task={next(_described())}", *longer]
    return longer


def _described() -> Iterator[str]:
    """Tasks that are described by the keys for which there are short ones."""
    for name in conf_folder.names("task"):
        if conf_folder.option("task", name)["about"].get("described"):
            yield name
