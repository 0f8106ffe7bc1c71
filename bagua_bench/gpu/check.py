"""`python -m bagua_bench check-gpu [--json FILE] [--parts PART ...]`: checks the suite on a GPU in minutes.

Every part runs in its own processes; FILE is rewritten after each. The profiles of the device, options of the group
`compute`, are written beside FILE (`bagua-bench simulate profile`). It needs only torch and this repository.
`--rehearse` tries the script on the CPU and shows nothing about a GPU. Two ranks on one GPU take turns: their times
can be compared with each other but say nothing about two GPUs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bagua_bench import libraries
from bagua_bench.gpu import verdicts
from bagua_bench.processes import together
from bagua_bench.processes.together import PartFailed
from bagua_bench.transport import environment

_BUDGET = 460.0  # seconds for all parts; with the start of Python and torch, less than eight minutes
_LIMIT = 110.0  # for one part, except the last: the profile tries every task in three precisions
_SOON = 50.0  # for the loss of a rank: two processes start, and a time-out of 10 s passes
_REHEARSAL = 5.0  # times as long for a rehearsal, whose processor may be any and busy
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for ranks, which share the processor

Check = dict[str, Any]


class Checks:
    """The parts, in the order in which they run; each returns its verdicts or raises."""

    def __init__(self, device: str, folder: Path, target: Path) -> None:
        self._device, self._folder, self._target = device, folder, target
        self._cuda = device == "cuda"
        self._patience = 1.0 if self._cuda else _REHEARSAL
        self.budget = self._patience * _BUDGET
        self._end = time.monotonic() + self.budget
        self._oracles: dict[int, list[Any]] = {}
        self.parts: dict[str, Callable[[], list[Check]]] = {
            "algorithms": lambda: self._algorithms("nccl" if self._cuda else "gloo", 2),
            "servers": lambda: self._algorithms("nccl, 2 servers of 2" if self._cuda else "gloo, 2 servers of 2", 4),
            "plugin": self._plugin,
            "lost": self._lost,
            "overhead": lambda: verdicts.ratios(
                "engine / plain torch, 1 rank", self._results("overhead", 1)[0], 1 / 1.02 if self._cuda else None
            ),
            "parity": lambda: verdicts.ratios("engine / DDP, 2 ranks", self._results("parity", 2)[0], None),
            "codecs": self._codecs,
            "profile": self._profile,
        }

    def left(self) -> float:
        """Seconds left of the budget."""
        return self._end - time.monotonic()

    def _algorithms(self, transport: str, size: int) -> list[Check]:
        return verdicts.algorithms(transport, self._results("algorithms", size), self._oracle(size), self._cuda)

    def _oracle(self, size: int) -> list[Any]:
        """What ranks on CPUs found."""
        if size not in self._oracles:
            self._oracles[size] = self._results("algorithms", size, "cpu")
        return self._oracles[size]

    def _plugin(self) -> list[Check]:
        """The algorithms once more, over Bagua-Net's NCCL plugin."""
        name = "nccl_bagua_net"
        if not self._cuda:
            return [verdicts.skipped(f"algorithms over {name}", "no CUDA device")]
        try:
            libraries.plugin()
        except RuntimeError as error:
            return [verdicts.skipped(f"algorithms over {name}", str(error))]
        ranks = self._ranks("algorithms", 2, "cuda", environment.for_nccl(streams=4))
        found = [rank["result"] for rank in ranks]
        carried = verdicts.carried(name, [rank["carried"] for rank in ranks])
        return [*verdicts.algorithms(name, found, self._oracle(2), traced=True), carried]

    def _lost(self) -> list[Check]:
        """A rank that stops ends the run, soon after the time-out."""
        name = f"a rank stops over {'nccl' if self._cuda else 'gloo'}"
        try:
            self._ranks("lost", 2, self._device, environment.SOON, _SOON)
        except PartFailed as error:
            return [verdicts.lost(name, error)]
        return [verdicts.failed(name, RuntimeError("both ranks end as if nothing had happened"))]

    def _codecs(self) -> list[Check]:
        if not self._cuda:
            return [verdicts.skipped("codecs", "no CUDA device")]
        rows = self._folder / "codecs.json"
        command = ["-m", "algorithms.codecs.benchmark_gpu", "--json", str(rows), "64", "256"]
        try:
            together.run([command], self._folder / "codecs", self._limit(_LIMIT))
            equal = verdicts.passed("codecs", "equal to the CPU's bit for bit")
        except PartFailed as error:  # speed is measured before a mismatch ends it
            equal = verdicts.failed("codecs", error)
        return [equal, *verdicts.codecs(json.loads(rows.read_text()) if rows.exists() else [])]

    def _profile(self) -> list[Check]:
        """The profiles are written beside the report; a rehearsal discards them."""
        command = ["-m", "bagua_bench.calibrate.profile", "--device", self._device, "--folder"]
        if self._cuda:
            command += [str(self._target)]
        else:
            command += [str(self._folder), "--scale", "tiny", "--steps", "1", "--precision", "fp32", "--tasks", "vgg16"]
        log = self._folder / "profile"
        try:
            said = together.run([command], log, self._limit(_BUDGET))[0]
        except PartFailed as error:  # what was measured before is already in files
            return [*self._profiles((log / "0.log").read_text()), verdicts.failed("profile", error)]
        return self._profiles(said)

    def _profiles(self, said: str) -> list[Check]:
        return verdicts.profile(said.replace(f"{self._target}/", "").splitlines())  # a report names no folder

    def _results(self, part: str, size: int, device: str | None = None) -> list[Any]:
        """What every rank of a part of `rank.PARTS` found."""
        return [rank["result"] for rank in self._ranks(part, size, device or self._device, {})]

    def _ranks(self, part: str, size: int, device: str, variables: dict[str, str], limit: float = _LIMIT) -> list[Any]:
        import torch

        folder = Path(tempfile.mkdtemp(dir=self._folder))
        commands = [["-m", "bagua_bench.gpu.rank", part, str(size), device, str(folder), str(k)] for k in range(size)]
        together.run(commands, folder, self._limit(limit), {**_ONE_THREAD, **variables})
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]

    def _limit(self, most: float) -> float:
        return max(1.0, min(self._patience * most, self.left()))


def main(arguments: list[str]) -> int:
    """Exit code 0 if every check passed or was skipped, 1 if one failed, 2 if there is no GPU, 130 if interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        try:
            return _run(arguments, Path(name))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130


def _run(arguments: list[str], folder: Path) -> int:
    parser = argparse.ArgumentParser(prog="python -m bagua_bench check-gpu", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("check-gpu.json"), help="the report (default %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="try the script on the CPU; shows nothing about a GPU")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="run only these parts")
    options = parser.parse_args(arguments)
    device = "cpu" if options.rehearse else "cuda"
    checks = Checks(device, folder, options.json.parent)
    chosen = options.parts or list(checks.parts)
    if unknown := [part for part in chosen if part not in checks.parts]:
        parser.error(f"--parts {unknown[0]}: no such part; allowed: {', '.join(checks.parts)}")
    machine = _machine()
    if "gpu" not in machine and not options.rehearse:
        print("check-gpu: no CUDA device, nothing checked; --rehearse tries the script on the CPU", file=sys.stderr)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine, "device": device, "rehearsal": options.rehearse, "seconds": {}, "checks": []}
    for part in chosen:
        began = time.monotonic()
        found = _verdicts(part, checks)
        report["seconds"][part] = round(time.monotonic() - began, 1)
        report["checks"] += found
        options.json.write_text(json.dumps(report, indent=1) + "\n")
        for check in found:
            print(f"{check['status']:8}{check['name']:38}{check['detail']}", flush=True)
    return 1 if any(check["status"] == "failed" for check in report["checks"]) else 0


def _verdicts(part: str, checks: Checks) -> list[Check]:
    """The checks of a part. A part that breaks counts as a failed check, and the others still run."""
    if checks.left() < 1:
        return [verdicts.skipped(part, f"no time left: all parts have {checks.budget:.0f} s; try --parts {part}")]
    try:
        return checks.parts[part]()
    except Exception as error:
        return [verdicts.failed(part, error)]


def _machine() -> dict[str, str]:
    import torch

    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "python": sys.version.split()[0]}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
