"""`bagua-bench advise --prepare` rehearses ahead what questions need, so that their answers come without torch."""

from __future__ import annotations

from bagua_bench.configuration import conf_folder, facts


def tasks(arguments: list[str]) -> list[list[str]]:
    """The questions that arguments stand for: their task's, or one for each of the suite's that can be simulated."""
    if any(text.partition("=")[0] == "task" for text in arguments):
        return [arguments]
    known = {name: facts.task_option(name) for name in conf_folder.names("task")}
    names = [name for name, own in known.items() if own.layers and not own.described and "simulate" in own.modes]
    return [[f"task={name}", *arguments] for name in names]
