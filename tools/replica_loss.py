"""Training with torchft goes on when a replica is lost, and takes it in again: `python -m tools.replica_loss`.

Replicas train the quadratic problem with torchft's own data parallelism, each a process of this machine; torchft's own
lighthouse says who takes part. One of them ends in the middle of a step, between the quorum and its part of the
all-reduce, and is later started again. Prints, as JSON, how long none of the others took a step, and what became of
the weights. Exit code 1 if training did not go on.

torchft 0.2's own hook does not outlive this: the failed all-reduce leaves no future for it to return, and it ends the
others by an assertion (`--hook torchft` shows it). The hook used here returns a future of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import IO, Any

from torch import Tensor
from torch.futures import Future

from tasks.quadratic import Quadratic

os.environ.setdefault("RUST_LOG", "error")  # torchft reads it when it is imported; by default it tells of every quorum

LIMIT = 180.0  # seconds for whatever is waited for
_PEACE = 20  # steps that all must have taken before anything happens, and after it
_STEP = 0.02  # seconds, at least
_TOLD = 4000  # the last characters of a replica's stderr, shown if it has ended


@dataclass
class Loss:
    """A replica lost and taken in again; seconds without a step of the others each time."""

    replicas: int
    without_it: float = 0.0
    with_it_again: float = 0.0
    refused: tuple[int, ...] = ()
    """How many attempts at a step counted for nothing while it was away, of each of the others."""
    steps: list[int] = field(default_factory=list)
    """That count, of each replica at its end: one that came again has those of the others."""
    equal: bool = False
    """Whether all had the same weights after their last common step."""


def suffer(replicas: int, hook: str = "own") -> Loss:
    """Lose the last one of so many replicas and start it again. AssertionError if one waits too long or ends early.

    hook: of DDP, "own" or "torchft".
    """
    from torchft.coordination import LighthouseServer

    house = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, heartbeat_timeout_ms=1000)
    found = Loss(replicas)

    def replica(number: int) -> _Replica:
        return _Replica(number, house.address(), replicas, hook)

    running = [replica(number) for number in range(replicas)]
    lost, others = running[-1], running[:-1]
    try:
        for one in running:
            one.until(replicas)
        killed = time.monotonic()
        lost.end_within_a_step()
        for one in others:
            one.until(replicas - 1, since=killed)
        found.without_it = max(one.pause(killed) for one in others)
        running[-1] = again = replica(lost.number)
        begun = time.monotonic()
        for one in running:
            one.until(replicas, since=begun)
        found.with_it_again = max(one.pause(begun) for one in others)
        found.refused = tuple(one.refused(killed, begun) for one in others)
        weights = [one.weights for one in running]
        common = max(set.intersection(*map(set, weights)))  # of the latest some may not have told yet
        found.equal = len({one[common] for one in weights}) == 1
        found.steps = [one.last for one in running]
        assert again.first > _PEACE, "who came again began from nothing"
    finally:
        for one in running:
            one.kill()
        house.shutdown()
    return found


class _Replica:
    """A process that trains, and what it has told."""

    def __init__(self, number: int, lighthouse: str, replicas: int, hook: str) -> None:
        self.number = number
        command = [sys.executable, "-m", "tools.replica_loss", "--replica", str(number), "--lighthouse", lighthouse]
        command += ["--replicas", str(replicas), "--hook", hook]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._said, env=environment)
        self.told: list[dict[str, Any]] = []
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            self.told.append(json.loads(line))

    def until(self, members: int, since: float = 0.0) -> None:
        """Wait until it has taken some more steps with so many members."""

        begun = time.monotonic()
        while sum(one["members"] == members and one["time"] > since for one in self._taken()) < _PEACE:
            assert self._process.poll() is None, f"replica {self.number} has ended: {self._reason()}"
            assert time.monotonic() < begun + LIMIT, f"replica {self.number} has stopped at {self.told[-1:]}"
            time.sleep(_STEP)

    def _reason(self) -> str:
        self._said.seek(0)
        return f"exit code {self._process.returncode}\n{self._said.read().decode(errors='replace')[-_TOLD:]}"

    def _taken(self) -> list[dict[str, Any]]:
        return [one for one in self.told.copy() if one["counts"]]

    @property
    def first(self) -> int:
        return int(self._taken()[0]["step"])

    @property
    def last(self) -> int:
        return int(self._taken()[-1]["step"])

    def refused(self, since: float, until: float) -> int:
        return sum(not one["counts"] and since < one["time"] < until for one in self.told.copy())

    @property
    def weights(self) -> dict[int, str]:
        """Of every step that counts."""
        return {one["step"]: one["weights"] for one in self._taken()}

    def pause(self, since: float) -> float:
        """The longest time between two steps from then on, seconds."""
        times = [one["time"] for one in self._taken()]
        return max(float(b - a) for a, b in pairwise(times) if b > since)

    def end_within_a_step(self) -> None:
        """Leave the others alone in an all-reduce."""
        self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LIMIT)
        self.kill()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._said.close()


def train(number: int, replicas: int, lighthouse: str, hook: str) -> None:
    """Be a replica until killed; a line for every attempt at a step. Upon SIGUSR1 it ends in its next backward pass."""
    import torchft
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    task, limit = Quadratic(lr=0.1), timedelta(seconds=LIMIT)
    model = task.model()
    optimizer = task.optimizer(model)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{number}",
        hostname="127.0.0.1",
    )
    module = (torchft.DistributedDataParallel if hook == "torchft" else _outliving())(manager, model)
    ending = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: ending.set())

    def end(_: Tensor) -> None:
        if ending.is_set():
            manager.wait_quorum()  # it must be one of those who are in this step
            os._exit(1)

    for parameter in model.parameters():
        parameter.register_hook(end)  # called before DDP's all-reduce
    _steps(task, module, manager, optimizer, task.batches(number, replicas, 0))


def _steps(task: Quadratic, module: Any, manager: Any, optimizer: Any, batches: Iterator[Any]) -> None:
    for batch in batches:
        time.sleep(_STEP)
        optimizer.zero_grad()
        manager.start_quorum()
        task.loss(module, batch).backward()
        counts = manager.should_commit()
        if counts:
            optimizer.step()
        told = {"step": manager.current_step(), "members": manager.num_participants(), "counts": counts}
        weights = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
        told |= {"time": time.monotonic(), "weights": hashlib.sha256(weights).hexdigest()}
        print(json.dumps(told), flush=True)


def _outliving() -> Any:
    """torchft's DDP, with a hook that has something to return when an all-reduce has failed."""
    import torchft

    class Outliving(torchft.DistributedDataParallel):  # type: ignore[misc]
        @staticmethod
        def _comm_hook(state, bucket):  # type: ignore[no-untyped-def]
            # Without annotations: DDP refuses those that `from __future__ import annotations` has made strings.
            state.allreduce(bucket.buffer()).wait()  # the manager keeps an error, and refuses the step
            done: Future[Tensor] = Future()
            done.set_result(bucket.buffer())
            return done

    return Outliving


def main() -> int:
    """0 if training went on, and all had the same weights at the end."""
    parser = argparse.ArgumentParser(prog="python -m tools.replica_loss", description=__doc__)
    parser.add_argument("--replicas", type=int, default=3, help="how many train (default %(default)s)")
    parser.add_argument("--hook", choices=("own", "torchft"), default="own", help="of DDP (default %(default)s)")
    parser.add_argument("--replica", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lighthouse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replica is not None:
        train(options.replica, options.replicas, options.lighthouse, options.hook)
    found = suffer(options.replicas, options.hook)
    print(json.dumps(asdict(found), indent=2))
    return 0 if found.equal else 1


if __name__ == "__main__":
    sys.exit(main())
