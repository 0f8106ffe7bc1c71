"""`bagua-bench simulate profile`: measure this device's computing times for the group `compute`.

Every task takes steps without communication, in the same loop and with the same clock as measured runs; a codec
processes as many elements as the task has. Writes NAME_PRECISION.yaml for every precision.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.optim import Optimizer

from algorithms.base import Op
from algorithms.codecs.base import Codec
from bagua_bench.calibrate.profile_file import Measured, text
from bagua_bench.configuration import conf_folder
from bagua_bench.configuration.cell import TaskPart
from bagua_bench.configuration.components import build
from bagua_bench.configuration.conf_folder import FOLDER as FOLDER
from bagua_bench.engine.stopwatch import Stopwatch
from bagua_bench.engine.trainer import Trainer
from bagua_bench.gpu import stand_in
from bagua_bench.machine.layers import TABLES, Layers
from bagua_bench.machine.lookup import layers_of
from bagua_bench.worker.loop import Loop
from tasks.base import Task

PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}
TASKS = tuple(sorted(path.stem for path in TABLES.glob("*.json")))
WARM, STEPS = 5, 20
_BUCKET = 10 * 2**18  # elements coded at a time, as in the engine's buckets
_CODEC = "algorithms.codecs.MinMaxUInt8"


class Alone(Trainer):
    """Trains one rank without communication."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.module = self.model = model
        self.optimizer = optimizer

    def synchronize(self) -> None:
        pass

    def optimize(self) -> None:
        self._advance()

    def restart(self) -> None:
        pass

    def sent(self) -> dict[str, float]:
        return {"flat": 0.0, "intra": 0.0, "inter": 0.0}

    def close(self, failed: bool = False) -> None:
        pass


def task_part(name: str, scale: str) -> TaskPart:
    """The task with its defaults, those of scale paper; works without Hydra, which may not be installed."""
    option = conf_folder.option("task", name)
    return TaskPart(name, option["_target_"], {"scale": scale}, option["about"], None)


def measure(name: str, task: Task, layers: Layers, device: torch.device, precision: str, steps: int) -> Measured:
    """Medians over `steps` steps after a warm-up, and over as many passes of the codec."""
    cores = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = cores
    torch.backends.cudnn.conv.fp32_precision = cores  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = task.model().to(device)
    trainer = Alone(model, task.optimizer(model))
    loop = Loop(trainer, task, device, 1, lambda *_: None, precision="bf16" if precision == "bf16" else "fp32")
    batches = task.batches(0, 1, 0)
    loop.take(batches, min(WARM, steps), "warm-up")
    seconds, _ = loop.take(batches, steps, "timed")
    forward, backward, optimizer = (median(s[key] for s in seconds) for key in ("forward", "backward", "optimizer"))
    del trainer, loop, model
    return Measured(name, task.batch, forward, backward, optimizer, *_coding(layers.elements, device, steps))


def _coding(elements: int, device: torch.device, passes: int) -> tuple[float, float]:
    """Seconds and charged bytes for encoding `elements` floats and averaging the encoded buckets, one by one.

    On a GPU, kernel launches are excluded, as the host makes them while the GPU computes.
    """
    codec: Codec = build(_CODEC, {})
    x, clock, times = torch.randn(1, min(elements, _BUCKET), device=device), Stopwatch(device), []
    repeats = max(1, round(elements / x.numel()))

    def code() -> None:
        for _ in range(repeats):
            codec.reduce(codec.encode(x, codec.buffer(x)), x[0], Op.AVG)

    charged: list[float] = []
    before, Codec.stand_in = Codec.stand_in, staticmethod(charged.append)
    try:
        code()
    finally:
        Codec.stand_in = before
    run = _captured(code) if device.type == "cuda" else code
    for _ in range(1 + passes):
        clock.mark("communication")
        run()
        times.append(clock.stop()["step"])
    return median(times[1:]), sum(charged)


def _captured(work: Callable[[], None]) -> Callable[[], None]:
    """A function that replays the kernels `work` launches; `work` must have been called before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def profile(
    names: Sequence[str], scale: str, device: torch.device, precision: str, steps: int
) -> tuple[list[tuple[Measured, Layers]], dict[str, str]]:
    """The measurements, and for each task that was not measured, or not as it is, the reason."""
    found, notes = [], {}
    for name in names:
        try:
            found.append(_one(name, scale, device, precision, steps))
        except Exception as error:  # whatever goes wrong with a task on this device; the others are still measured
            notes[name] = (str(error).splitlines() or [type(error).__name__])[0]
            if isinstance(error, ImportError) and name in stand_in.NAMES:
                notes[name] += "; a model of plain torch was measured instead"
                task = stand_in.StandIn(name, scale)
                found.append((measure(name, task, task.layers(), device, precision, steps), task.layers()))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return found, notes


def _one(name: str, scale: str, device: torch.device, precision: str, steps: int) -> tuple[Measured, Layers]:
    part = task_part(name, scale)
    layers = layers_of(part)
    return measure(name, build(part.target, part.options), layers, device, precision, steps), layers


def machine(device: torch.device) -> list[str]:
    """Name of the device, then the versions that its speed depends on."""
    versions = [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()
        return [torch.cuda.get_device_name(device), *versions, f"CUDA {torch.version.cuda}", f"cuDNN {cudnn}"]
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    threads = f"{torch.get_num_threads()} threads"
    return [processor[1].strip() if processor else platform.machine(), *versions, threads]


def main(arguments: Sequence[str]) -> int:
    """Exit code 0; 2 for wrong arguments. Every task is measured, or printed with the reason why not."""
    parser = argparse.ArgumentParser(prog="bagua-bench simulate profile", description=__doc__)
    parser.add_argument("--device", choices=PRECISIONS, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS["cuda"], help="default: all that the device has")
    parser.add_argument("--scale", choices=("paper", "tiny"), default="paper", help="tiny: only to try the command")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed steps (default %(default)s)")
    parser.add_argument("--name", help="name of the files (default: the device's)")
    parser.add_argument("--folder", type=Path, default=FOLDER / "compute", help="where to write (default %(default)s)")
    given = parser.parse_args(arguments)
    device, wanted = torch.device(given.device), given.precision or PRECISIONS[given.device]
    if unknown := [p for p in wanted if p not in PRECISIONS[given.device]]:
        parser.error(f"--precision {unknown[0]}: {given.device} has {', '.join(PRECISIONS[given.device])}")
    given.folder.mkdir(parents=True, exist_ok=True)
    title, *versions = machine(device)
    stem = given.name or re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
    for precision in wanted:
        found, notes = profile(given.tasks, given.scale, device, precision, given.steps)
        for name, reason in notes.items():
            print(f"{precision}: {name}: {reason}", flush=True)
        if not found:
            continue
        head = [
            f"{title} in {precision}, measured by bagua-bench simulate profile.",
            f"{', '.join(versions)}; scale {given.scale}, medians of {given.steps} steps.",
            *(f"{name}: {reason}." for name, reason in notes.items()),
        ]
        path = given.folder / f"{stem}_{precision}.yaml"
        path.write_text(text(found, head))
        print(f"{precision}: {', '.join(m.task for m, _ in found)}; compute={path.stem}: {path}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
