"""The front door: `python -m bagua_bench task=vgg16 algo=bytegrad` (Hydra syntax; `--help` lists everything).

`python -m bagua_bench check-gpu` is a command of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__" and sys.argv[1:2] == ["check-gpu"]:  # runs where Hydra is not installed
    from bagua_bench.gpu.check import main as check_gpu

    sys.exit(check_gpu(sys.argv[2:]))

from bagua_bench.launch import joined

if __name__ == "__main__" and not joined.is_recorder():  # rank 0 composes, for all
    from bagua_bench.launch.crew import follow, leave

    leave(follow())

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bagua_bench.campaign.cells import expand
from bagua_bench.campaign.plan import interleave
from bagua_bench.configuration.cell import Cell, Job
from bagua_bench.configuration.conf_folder import FOLDER
from bagua_bench.configuration.network_shape import is_shaped
from bagua_bench.configuration.resolve import ConfigError, has_cuda, refuse_unknown, register, resolve
from bagua_bench.configuration.validate import absent, validate
from bagua_bench.network import machine
from bagua_bench.results import records


class App:
    """Hydra calls this once per combination of a multirun. It collects the jobs: all are checked before any runs."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Job], str]] = []
        self.error: Exception | None = None
        self.dry_run = False

    def __call__(self, composed: DictConfig) -> None:
        try:
            self.batches.append(self._jobs(composed))
        except (ConfigError, OmegaConfBaseException) as error:
            self.error = self.error or error

    def _jobs(self, composed: DictConfig) -> tuple[list[Job], str]:
        choices = HydraConfig.get().runtime.choices
        if composed.campaign is None:
            cell = _checked(resolve(composed, choices))
            if (reason := absent(cell)) is not None:  # a campaign skips it
                raise ConfigError(reason)
            return [Job(cell, 0)], records.ADHOC
        refuse_unknown(composed)
        self.dry_run = composed.campaign.dry_run
        overrides = list(HydraConfig.get().overrides.task)
        cells = [_checked(cell) for cell in expand(composed.campaign, overrides)]
        jobs = interleave(cells, composed.campaign.rounds, composed.campaign.undisturbed)
        return jobs, choices["campaign"]


def _checked(cell: Cell) -> Cell:
    if joined.is_joined():
        if is_shaped(cell):
            raise ConfigError(f"network={cell.network.name}: a job uses its cluster's network; allowed: none")
        if cell.run.elastic is not None:
            raise ConfigError("run.elastic=true: the job's own launcher starts the ranks; see docs/elastic.md")
        servers, ranks = _entered()
        cell = replace(cell, cluster=replace(cell.cluster, servers=servers, ranks_per_server=ranks))
    validate(cell)
    if cell.mode == "measure" and cell.run.device == "cuda" and not has_cuda():
        raise ConfigError("run.device=cuda: no NVIDIA GPU, or torch is not a CUDA build; allowed here: auto, cpu")
    try:
        return machine.settle(cell)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _entered() -> tuple[int, int]:
    """Servers of the job that this process is part of, and ranks on each."""
    try:
        return joined.enter()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _make_folders(batches: Sequence[tuple[Sequence[Job], str]]) -> None:
    """Create the folders for the records. ConfigError if records cannot be written there."""
    for results, name in {(job.cell.run.results, name) for jobs, name in batches for job in jobs}:
        folder = records.file_of(results, name).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"{error.strerror}; must be a folder that can be written to"
            raise ConfigError(f"run.results={results}: {why}") from None
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"run.results={results}: no permission to write to {folder}")


def main() -> int:
    """Exit code 0; 1 if a run failed, 2 if the configuration is wrong, 130 if interrupted."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors instead of printing them
    app = App()
    try:
        _refuse_unknown(get_args_parser().parse_known_args()[1])
        _refuse_launch(get_args_parser().parse_args().overrides)
        hydra.main(config_path=str(FOLDER), config_name="config", version_base=None)(app)()
        if app.error is not None:
            raise app.error
        if not app.dry_run:
            _make_folders(app.batches)
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        print(_explained(error), file=sys.stderr)
        return 2
    if not app.batches:  # --help and the like
        return 0
    if app.dry_run:
        from bagua_bench.campaign.session import preview

        for jobs, name in app.batches:
            preview(jobs, name)
        return 0
    if any(is_shaped(job.cell) for jobs, _ in app.batches for job in jobs):
        machine.enter()
    from bagua_bench.campaign.session import run_jobs  # now that there is something to run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        failures = [
            failure for jobs, name in app.batches for failure in run_jobs(jobs, name, resume=name != records.ADHOC)
        ]
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except records.NotKept as error:
        print(error, file=sys.stderr)
        return 1
    if sum(len(jobs) for jobs, _ in app.batches) > 1:
        for failure in failures:
            print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Raise ConfigError for an argument that Hydra takes neither as an option nor as an override."""
    if options := [text for text in arguments if text.startswith("-")]:
        raise ConfigError(f"{options[0]}: no such option; arguments are KEY=VALUE, and --help lists the keys")
    if arguments:
        raise ConfigError(f"{arguments[0]}: write -m and other options before the first KEY=VALUE, or after the last")


def _refuse_launch(overrides: Sequence[str]) -> None:
    """Raise ConfigError where Hydra, or a batch script, would start the command in a way in which it runs nothing."""
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "hydra/launcher" and value != "basic":
            raise ConfigError(
                f"{text}: Hydra's launchers would compose runs elsewhere and run none; leave it out, and for a job of "
                "Slurm write srun in front of the command"
            )
    try:
        joined.refuse()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _end_job(code: int) -> NoReturn:
    """Tell the other ranks of the job that there is no more, and end."""
    from bagua_bench.launch.crew import dismiss, leave

    with suppress(ValueError):  # the ranks do not form a job: each knows
        joined.enter()
        dismiss(code)
    leave(code)


def _explained(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return str(cause)
        cause = cause.__cause__
    from bagua_bench.configuration.explain import explain

    given = get_args_parser().parse_args()
    return explain(error, given.overrides, [Path(given.config_dir)] if given.config_dir else [])


if __name__ == "__main__":
    if not joined.is_joined():
        sys.exit(main())
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    _end_job(code)
