"""`check-gpu` where there is no GPU: it says so, and its rehearsal runs with nothing but torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from bagua_bench.gpu import verdicts
from bagua_bench.gpu.check import Checks, _verdicts, main
from bagua_bench.processes import together
from bagua_bench.processes.together import PartFailed

HOME = Path(__file__).resolve().parents[2]
MISSING = ("hydra", "omegaconf", "yaml", "rich", "pandas", "matplotlib", "scipy", "sklearn", "psutil", "torchvision",
           "transformers", "triton", "numpy")  # fmt: skip


def check(folder: Path, *options: str, forks: bool = False) -> subprocess.CompletedProcess[str]:
    command = ["bagua_bench", "check-gpu", "--json", str(folder / "report.json"), *options]
    return bare(folder, *(["tests.warm.fork", "-m"] if forks else []), *command)


def bare(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """`python -m COMMAND` where everything but torch is missing."""
    for name in MISSING:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    paths = os.pathsep.join([str(folder), str(HOME)])
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=HOME, env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 2
    said = "check-gpu: no CUDA device, nothing checked; --rehearse tries the script on the CPU"
    assert done.stderr.splitlines()[-1] == said  # after torch's warning that NumPy is missing
    assert not (tmp_path / "report.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_transport_s_own_check_needs_no_more_than_torch(tmp_path: Path) -> None:
    done = bare(tmp_path, "bagua_bench.transport", "check-gpu")
    assert done.returncode == 2
    assert done.stdout.startswith("check-gpu: torch.cuda.is_available() is False")


def test_rehearsal_runs_every_part_and_is_marked_as_one(tmp_path: Path) -> None:
    done = check(tmp_path, "--rehearse", forks=True)  # forks of a process that has torch and nothing in MISSING
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rehearsal"]
    assert report["device"] == "cpu"
    status = {one["name"]: one["status"] for one in report["checks"]}
    assert {name for name, word in status.items() if word == "skipped"} == {
        "codecs", "algorithms over nccl_bagua_net", "profile, fp32, vgg16",
    }  # fmt: skip
    for name in (
        "bytegrad over gloo", "qadam over gloo, 2 servers of 2", "gradient_allreduce, bfloat16 over gloo",
        "autocast fp16 over gloo", "engine / DDP, 2 ranks, vgg16", "profile, fp32",
    ):  # fmt: skip
        assert status[name] == "passed"


@pytest.mark.parametrize(
    ("logs", "late", "status"),
    [
        (["timed out", f"\n{verdicts.STOPS}\n"], False, "passed"),
        (["waits", verdicts.STOPS], True, "failed"),
        (["ImportError", "ImportError"], False, "failed"),  # before anything had stopped
    ],
)
def test_the_loss_of_a_rank_passes_only_if_it_was_lost(logs: list[str], late: bool, status: str) -> None:
    assert verdicts.lost("lost", PartFailed("why", logs, late))["status"] == status


def test_a_part_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = check(tmp_path, "--rehearse", "--parts", "codec")
    assert done.returncode == 2
    said = "--parts codec: no such part; allowed: algorithms, servers, plugin, lost, overhead, parity, codecs, profile"
    assert done.stderr.splitlines()[-1].endswith(said)


def test_a_part_that_breaks_fails_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its processes printed is also in the report, which remains whatever happens later."""
    gone = PartFailed("RuntimeError: lost", ["line 1\nRuntimeError: lost", ""])
    monkeypatch.setattr(Checks, "_results", lambda *_: (_ for _ in ()).throw(gone))
    report = tmp_path / "new folder" / "report.json"
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--rehearse", "--json", str(report), "--parts", "algorithms", "codecs"]) == 1
    finally:
        signal.signal(signal.SIGTERM, handler)
    broken, codecs = json.loads(report.read_text())["checks"]
    assert broken == {"name": "algorithms", "status": "failed", "detail": str(gone), "data": gone.logs}
    assert codecs["status"] == "skipped"


def test_no_part_starts_when_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "left", lambda self: 0.0)
    verdict = _verdicts("algorithms", Checks("cpu", tmp_path, tmp_path))
    assert [one["status"] for one in verdict] == ["skipped"]


WAITS = "import time; print('up', flush=True); time.sleep(600)"
BREAKS = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).read_text():
    time.sleep(0.02)
try:
    raise ValueError("the reason")
finally:
    sys.excepthook = lambda *error: print("ValueError: the reason\\n[W] destroy_process_group() was not called")
"""


def test_one_rank_that_fails_ends_the_other_and_says_why(tmp_path: Path) -> None:
    """Over NCCL a rank waits for one that is gone until its time is up."""
    began = time.monotonic()
    with pytest.raises(PartFailed, match=r"^ValueError: the reason$") as failure:
        together.run([["-c", WAITS], ["-c", BREAKS, str(tmp_path / "0.log")]], tmp_path, 500)
    assert time.monotonic() - began < 30, "not by the limit"
    assert failure.value.logs[0] == "up"
    assert "destroy_process_group" in failure.value.logs[1]
    assert not waiting()


def waiting() -> list[psutil.Process]:
    """Children of this process that wait."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # another one has just ended
            found += [child] if WAITS in child.cmdline() else []
    return found


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only once both have said something."""
    logs, asked = [tmp_path / f"{number}.log" for number in range(2)], []

    def monotonic() -> float:
        asked.append(all(log.read_text() for log in logs))
        return 10.0 if asked[1:] and asked[-1] else 0.0

    monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    with pytest.raises(PartFailed, match=r"^not done after 2 s$") as failure:
        together.run([["-c", WAITS], ["-c", "print('done')"]], tmp_path, 2)
    assert failure.value.logs == ["up", "done"]
    assert not waiting()


def test_a_signal_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(PartFailed, match=r"^ended by SIGKILL$"):
        together.run([["-c", "import os; os.kill(os.getpid(), 9)"]], tmp_path, 500)


def test_verdicts_fail_what_is_slow_differs_or_waits() -> None:
    def ranks(value: float, waits: str | None = None, tolerance: float = 1e-4) -> list[dict[str, object]]:
        case = {"weights": torch.tensor([1.0, value]), "waits": waits, "tolerance": tolerance, "traced": None}
        return [{"ByteGrad": case}] * 2

    def verdict(outcome: list[dict[str, object]], tolerance: float = 1e-4) -> str:
        return str(verdicts.algorithms("nccl", outcome, ranks(2.0, tolerance=tolerance), False)[0]["status"])

    assert verdict(ranks(2.0)) == verdict(ranks(2.1), tolerance=0.1) == "passed"
    assert verdict(ranks(2.1)) == verdict(ranks(float("nan"))) == verdict(ranks(2.0, "a wait")) == "failed"
    one_waits = [*ranks(2.0)[:1], *ranks(2.0, "a wait")[:1]]
    assert verdict(one_waits) == verdict([{"ByteGrad": {"error": "refused"}}] * 2) == "failed"
    untraced = verdicts.algorithms("nccl", ranks(2.0), ranks(2.0), True)
    assert [one["status"] for one in untraced] == ["passed", "skipped"]
    row = {"operation": "encode", "mebibytes": 64.0, "bytes_per_second": 1e12}
    shares = [verdicts.codecs([{**row, "of_copy": share}])[0]["status"] for share in (0.69, 0.71)]
    assert shares == ["failed", "passed"]
    ratio = {"vgg16": {"throughput_ratio": 0.97, "ratios": [0.97]}}
    assert verdicts.ratios("engine", ratio, 1 / 1.02)[0]["status"] == "failed"
    assert [verdicts.carried("nccl_bagua_net", sent)["status"] for sent in ([5, 0], [5, 5])] == ["failed", "passed"]
