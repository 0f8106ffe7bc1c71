"""`bagua-bench advise task=vgg16 cluster=bagua_paper network.bandwidth=10gbit network.latency=1ms`.

Ranks algorithm x transport x bucket size x channels by the simulated time of a step, and says why. It takes the
arguments of `python -m bagua_bench` except mode, algo, campaign, and the length and buckets of a run, which it chooses
itself; `--json` prints the same for programs.

What the algorithms do is rehearsed once and kept. `--prepare` does it ahead, for the arguments' task or else for all of
the suite's, so that answers about them on such a cluster need no torch.
"""

from __future__ import annotations

import json
import sys

from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.advise import prepare, ranking, words
from bagua_bench.advise.answer import answer
from bagua_bench.advise.candidates import Candidates, candidates
from bagua_bench.advise.short import expanded
from bagua_bench.advise.values import values
from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import Cell
from bagua_bench.configuration.compose import compose_cell
from bagua_bench.configuration.explain import explain
from bagua_bench.configuration.resolve import ConfigError, register
from bagua_bench.configuration.validate import validate
from bagua_bench.machine.lookup import layers_of
from bagua_bench.simulate.cluster import cluster_of

_OWN = {
    "algo": "advise compares all algorithms",
    "campaign": "advise runs no campaign",
    "run.steps": "advise sets it for every algorithm",
    "run.untimed": "advise sets it for every algorithm",
    "run.bucket_size": "advise tries several",
    "run.channels": "advise tries several",
    "transport.wire": "advise compares exact sums",
    "task.sampler": "advise compares what depends on the algorithm, with batches that are all alike",
}
_HELP = """\
{doc}
Your own model by its number of parameters, on your own cluster, with a GPU whose step (forward, backward, optimizer, at
task.batch samples) you have timed:

  bagua-bench advise model.parameters=1.3e9 task.step_seconds=400ms task.batch=8 \\
      cluster.servers=4 cluster.ranks_per_server=8 network.bandwidth=100gbit network.latency=0.05ms

By name, if its library is installed (nothing is downloaded), or as a function that returns it:

  bagua-bench advise model=torchvision:resnet50 task.batch=32 ...
  bagua-bench advise model=transformers:bert-large-uncased task.length=384 ...
  bagua-bench advise model=mypackage.module:make_model task.step_seconds=400ms ...

One of the suite's models:

  bagua-bench advise task=vgg16 task.batch=64 task.step_seconds=0.05 \\
      cluster.servers=4 cluster.ranks_per_server=8 network.bandwidth=25gbit network.latency=0.05ms

task=NAME                    {task}
model.parameters=, model=    short for task=own task.parameters= and task=own task.model=
task.step_seconds=TIME       of one GPU, 0.05 (seconds) or 50ms; taken from compute= if not given
compute=NAME                 {compute}; for your own GPU: bagua-bench simulate profile
compute.memory_bandwidth=    for the optimizer and codecs
cluster=NAME                 {cluster}
                             from your own records: bagua-bench simulate calibrate
cluster.servers=, .ranks_per_server=
cluster.slow_ranks.RANK=     how many times as long this rank computes (2)
cluster.physics.line=, ...   bytes/s, seconds; parameters of the model (bagua_bench/configuration/physics.py)
network.bandwidth=           of a server's link, each way (1gbit); the cluster's own if not given
network.latency=             one way, on top of the cluster's own (0.5ms); also .jitter=, .loss=, .tcp_window=
network.sites=2              groups of as many servers; between them network.wan.bandwidth=, .latency=, .jitter=, .loss=
transport=NAME               {transport}; also compared: those that the cluster knows

The table:

{legend}

The lines above it:

{lines}"""


def compared(arguments: list[str]) -> tuple[Candidates, Cell]:
    """The cells to compare, and the one they vary. ConfigError for a combination that cannot be run."""
    for text in arguments:
        _refuse(text)
    register()
    with initialize_config_dir(str(conf_folder.FOLDER), version_base=None):
        base = compose_cell(["mode=simulate", *arguments])
        if base.mode != "simulate":
            raise ConfigError(f"mode={base.mode}: advice is simulated; allowed: simulate")
        validate(base)
        _check_physics(base)
        _check_model(base)
        others = [name for name in base.cluster.transports if name in conf_folder.names("transport")]
        names = [name for name in sorted(others) if name != base.transport.name]
        transports = [compose_cell(["mode=simulate", *arguments, f"transport={name}"]).transport for name in names]
    if base.cluster.ranks == 1:
        raise ConfigError(
            "cluster.servers=1 x cluster.ranks_per_server=1: one rank has nobody to talk to; allowed: 2 or more"
        )
    return candidates(base, [base.transport, *transports]), base


def _check_physics(cell: Cell) -> None:
    try:
        cluster_of(cell)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_model(cell: Cell) -> None:
    try:
        layers_of(cell.task)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _refuse(text: str) -> None:
    """ConfigError for an argument that would be overridden."""
    key = text.partition("=")[0].lstrip("+~")
    for own, reason in _OWN.items():
        if key == own or key.startswith(f"{own}."):
            raise ConfigError(f"{text}: {reason}; leave it out")


def _help() -> str:
    groups = {group: ", ".join(conf_folder.names(group)) for group in ("task", "compute", "cluster", "transport")}
    return _HELP.format(doc=__doc__, legend=words.LEGEND, lines=words.LINES, **groups)


def _prepare(arguments: list[str]) -> int:
    for question in prepare.tasks(arguments):
        found, _ = compared(question)
        ranking.advise(found.cells, workers=0)
        print(f"{' '.join(question)}: prepared")
    return 0


def main() -> int:
    """Exit code 0; 2 if the configuration is wrong."""
    given = sys.argv[1:]
    if any(text in ("-h", "--help") for text in given):
        print(_help())
        return 0
    arguments = expanded([text for text in given if text not in ("--json", "--prepare")])
    try:
        if "--prepare" in given:
            return _prepare(arguments)
        found, base = compared(arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException) as error:
        print(explain(error, arguments), file=sys.stderr)
        return 2
    best = answer(ranking.advise(found.cells, workers=0), base, found.refused)
    print(json.dumps(values(best, arguments), indent=1) if "--json" in given else words.text(best, arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
