"""A Slurm of several nodes on this machine, for tests: its own daemons, key and folders, ended with the test."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
_UP = 90.0  # seconds

_CONF = """
ClusterName=bagua
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no Slurm can be brought up here; empty if one can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    if os.geteuid():
        return "Slurm's daemons need root"
    if not Path("/sys/fs/cgroup").is_mount():
        return "/sys/fs/cgroup is not mounted, which slurmd needs"
    return ""


class Slurm:
    """A cluster that is up; jobs run in `folder`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def run(
        self, *command: str, folder: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run srun, salloc or sbatch, or a shell with them."""
        environment = {**self.environment, **(env or {})}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@contextmanager
def cluster(folder: Path, nodes: int = 2, cores: int = 2) -> Iterator[Slurm]:
    """A controller and so many nodes, all on this machine, with names of their own (node0, node1, ...)."""
    names = [f"node{number}" for number in range(nodes)]
    ports = _free_ports(nodes + 1)
    lines = [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={cores}"
        for name, port in zip(names, ports[1:], strict=True)
    ]
    conf = _CONF.format(host=socket.gethostname(), port=ports[0], folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(conf)
    (folder / "state").mkdir()
    (folder / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(names)}\n")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    environment.pop("OMP_NUM_THREADS", None)  # of the tests; a user has not set it
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with (folder / "daemons.log").open("a") as log:
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    files = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
    try:
        own = [f"--{option}={folder / name}" for option, name in {**files, "key-file": "munge.key"}.items()]
        start("munged", "--foreground", "--force", *own)
        _wait_for(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D", "-c")
        for name in names:  # with a host name and a list of hosts of its own, as a machine has
            into = f"mount --bind {folder / 'hosts'} /etc/hosts && hostname {name} && exec slurmd -D -N {name}"
            start("unshare", "--mount", "--uts", "sh", "-c", into)
        slurm = Slurm(environment)
        _wait_for(lambda: _idle(slurm, folder) == nodes, folder)
        yield slurm
    finally:
        for daemon in reversed(daemons):
            _end(daemon)
        for step in psutil.process_iter(["name"]):  # they outlive their node's daemon, and wait for it
            if step.info["name"] == "slurmstepd" and _belongs(step, folder):
                step.kill()


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(5)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _belongs(process: psutil.Process, folder: Path) -> bool:
    """Whether a process is of the Slurm whose configuration is in a folder."""
    try:
        return process.environ().get("SLURM_CONF") == str(folder / "slurm.conf")
    except psutil.Error:
        return False


def _idle(slurm: Slurm, folder: Path) -> int:
    return slurm.run("sinfo", "-h", "-N", "-t", "idle", folder=folder).stdout.count("\n")


def _wait_for(condition: object, folder: Path) -> None:
    assert callable(condition)
    deadline = time.monotonic() + _UP
    while not condition():
        logs = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))
        assert time.monotonic() < deadline, f"Slurm is not up after {_UP:.0f} s:\n{logs}"
        time.sleep(0.1)


def _free_ports(number: int) -> list[int]:
    """Above those of the suite's own jobs, and below those that Linux gives to connections of tests beside this one."""
    found: list[int] = []
    for port in range(32_000, 32_768):
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            found.append(port)
    return found[:number]
