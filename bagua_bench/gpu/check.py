"""`python -m bagua_bench check-gpu [--json FILE] [--rehearse]`: every part in processes of its own, then a table.

Beside FILE come the profiles of the device, options of the group `compute` (`python -m bagua_bench.simulate profile`).
Needs torch and this repository alone. Not yet run on a GPU; `--rehearse` tries the script on the CPU and shows nothing
about a GPU. Two ranks on one GPU take turns: their times hold against each other and say nothing about two GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bagua_bench import libraries
from bagua_bench.gpu import verdicts
from bagua_bench.transport import environment

_HOME = Path(__file__).resolve().parents[2]
_LIMIT = 100.0  # seconds for a part ...
_PROFILE_LIMIT = 200.0  # ... and for the profile, which tries every task in three precisions


def main(arguments: list[str]) -> int:
    """0 if every check passed or was skipped with a reason, 1 if one failed, 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bagua_bench check-gpu", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("check-gpu.json"), help="written to (default %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: tries the script, shows nothing")
    options = parser.parse_args(arguments)
    machine = _machine()
    if "gpu" not in machine and not options.rehearse:
        print("check-gpu: no CUDA device, nothing checked; --rehearse tries the script on the CPU", file=sys.stderr)
        return 2
    device = "cpu" if options.rehearse else "cuda"
    checks = _checks(device, options.json.parent)
    report = {"machine": machine, "device": device, "rehearsal": options.rehearse, "checks": checks}
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for check in checks:
        print(f"{check['status']:8}{check['name']:38}{check['detail']}")
    return 1 if any(check["status"] == "failed" for check in checks) else 0


def _machine() -> dict[str, str]:
    import torch

    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "python": sys.version.split()[0]}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _checks(device: str, target: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bagua-bench-") as name:
        folder = Path(name)
        oracle = _ranks("algorithms", 2, "cpu", folder / "oracle")
        return [
            *verdicts.codecs(_codecs(folder / "codecs.json") if device == "cuda" else "no CUDA device"),
            *verdicts.algorithms("nccl" if device == "cuda" else "gloo",
                                 _ranks("algorithms", 2, device, folder / "algorithms"), oracle),
            *verdicts.algorithms("nccl_bagua_net", _with_plugin(device, folder / "plugin"), oracle),
            *verdicts.ratios("engine / DDP, 2 ranks", _ranks("parity", 2, device, folder / "parity"), None),
            *verdicts.ratios("engine / plain torch, 1 rank", _ranks("overhead", 1, device, folder / "overhead"),
                             1 / 1.02 if device == "cuda" else None),
            *verdicts.profile(_profile(device, target, folder / "profile.log")),
        ]  # fmt: skip


def _with_plugin(device: str, folder: Path) -> list[Any] | str:
    """The algorithms over Bagua-Net's NCCL plugin; a text says why not."""
    if device != "cuda":
        return "no CUDA device"
    try:
        libraries.plugin()
    except RuntimeError as error:
        return str(error)
    return _ranks("algorithms", 2, device, folder, environment.for_nccl(streams=4))


def _codecs(path: Path) -> list[Any] | str:
    command = [sys.executable, "-m", "algorithms.codecs.benchmark_gpu", "--json", str(path), "64", "256"]
    failure = _failure([_start(command, path.with_suffix(".log"))], [path.with_suffix(".log")])
    rows: list[Any] = [] if failure else json.loads(path.read_text())
    return [RuntimeError(failure)] if failure else rows


def _profile(device: str, target: Path, log: Path) -> list[Any] | str:
    """What `bagua_bench.simulate.profile` printed, which writes its files to `target`; in a rehearsal nowhere."""
    command = [sys.executable, "-m", "bagua_bench.simulate.profile", "--device", device, "--folder"]
    if device == "cuda":
        command += [str(target)]
    else:
        command += [str(log.parent), "--scale", "tiny", "--steps", "1", "--precision", "fp32", "--tasks", "vgg16"]
    failure = _failure([_start(command, log)], [log], _PROFILE_LIMIT)
    return [RuntimeError(failure)] if failure else log.read_text().splitlines()


def _ranks(part: str, size: int, device: str, folder: Path, variables: dict[str, str] | None = None) -> list[Any] | str:
    """The result of every rank of a part of `rank.PARTS`, or the error that ended it."""
    import torch

    folder.mkdir()
    logs = [folder / f"{rank}.log" for rank in range(size)]
    arguments = [[part, str(rank), str(size), device, str(folder)] for rank in range(size)]
    module = [sys.executable, "-m", "bagua_bench.gpu.rank"]
    failure = _failure([_start([*module, *a], log, variables) for a, log in zip(arguments, logs, strict=True)], logs)
    if failure:
        return [RuntimeError(failure)]
    found = [torch.load(folder / f"{part}-{device}-{rank}.pt", weights_only=False) for rank in range(size)]
    return [one["result"] for one in found]


def _start(command: list[str], log: Path, variables: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    loopback = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **loopback, **(variables or {})}
    with log.open("w") as stream:
        return subprocess.Popen(command, env=own, stdout=stream, stderr=subprocess.STDOUT)


def _failure(processes: list[subprocess.Popen[bytes]], logs: list[Path], limit: float = _LIMIT) -> str | None:
    """Wait for all; one line on the first that failed, None if none did."""
    try:
        for process in processes:
            process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    finally:
        for process in processes:
            process.kill()
    for process, log in zip(processes, logs, strict=True):
        if process.returncode:
            lines = log.read_text().strip().splitlines()
            return lines[-1] if lines else f"exit code {process.returncode}"
    return None
