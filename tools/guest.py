"""Tests the backend netem with the kernel's own `tc netem`, wherever that can be had (make test-netem).

If this kernel lacks netem, the tests run in a User Mode Linux guest, which boots in a second, needs no rights and sees
the files of the host. If there is no guest either, nothing is tested, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bagua_bench.network import machine
from bagua_bench.results import records
from tests.emulated import why_not

HOME = Path(__file__).resolve().parents[1]
KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
LOADED = ("bridge", "veth", "sch_netem", "tcp_bbr")
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
REGISTERS = HOME / "tools/registers.c"
TIMEOUT = 1200  # seconds
RUN = ["task=vgg16", "task.scale=tiny", "algo=ddp,bytegrad", "run.steps=3", "run.warmup=1", "run.evaluate=false",
       "run.timeout=300s", "network.bandwidth=100mbit", "network.latency=5ms", "network.backend=netem"]  # fmt: skip


def tests(folder: Path) -> int:
    """The backend's own tests, then two whole runs; exit code 0 if all is well. FOLDER receives the records."""
    machine.enter()
    failed = pytest.main(
        [
            "--color=no",
            "--tb=short",
            "-k",
            "netem",
            "-rs",
            "-p",
            "no:cacheprovider",
            str(HOME / "tests/integration/test_network.py"),
        ]
    )
    command = [sys.executable, "-m", "bagua_bench", "-m", *RUN, f"run.results={folder}"]
    if failed or subprocess.run(command, cwd=HOME).returncode:
        return 1
    found = records.read([folder / "runs" / "records.jsonl"])
    for record in found:
        measured = record["network"]["measured"]
        print(record["config"]["algo"]["name"], measured["backend"], measured["before"], measured["flags"])
    wrong = [r for r in found if r["status"] != "done" or r["network"]["measured"]["backend"] != "netem"]
    return 0 if len(found) == 2 and not wrong else 1


def objects() -> list[Path]:
    """The guest's kernel modules in the order in which to load them, dependencies first."""
    listed = next(MODULES.glob("*/modules.dep"))
    lines = [line.replace(":", "").split() for line in listed.read_text().splitlines()]
    files = [file for line in lines if Path(line[0]).stem in LOADED for file in reversed(line)]
    return [listed.parent / file for file in dict.fromkeys(files)]


def accuracy(folder: Path) -> int:
    """Measure how exactly the kernel shapes; FOLDER receives the records."""
    command = [sys.executable, "-m", "bagua_bench.network", "accuracy", "--backend=netem", f"--results={folder}"]
    return subprocess.run(command, cwd=HOME).returncode


def lossy(folder: Path) -> int:
    """Bagua-Net and a plain connection over delay and loss by netem; FOLDER receives the records."""
    machine.enter()
    rest = ["--case=delay and loss", "--rounds=5", f"--json={folder / 'lossy.jsonl'}"]
    return subprocess.run([sys.executable, "-m", "tools.transport", "measure", *rest], cwd=HOME).returncode


def boot(arguments: list[str], folder: Path) -> int:
    """Run this module as root of a guest; its exit code. Host and guest exchange files through FOLDER."""
    begin = folder / "init.sh"
    begin.write_text(
        "\n".join(
            [
                "#!/bin/sh",
                "mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /run",
                "mkdir /run/tmp; ip link set lo up",
                "echo 100000 > /proc/sys/net/core/netdev_max_backlog",  # no loss except netem's
                *(f"insmod {path}" for path in objects()),
                f"export PATH={SBIN} HOME={Path.home()} TMPDIR=/run/tmp TERM=dumb",
                f"cd {HOME} && {sys.executable} -m tools.guest {shlex.join(arguments)} 2>&1; echo $? > {folder}/code",
                f"{sys.executable} -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)'",  # power off
            ]
        )
    )
    begin.chmod(0o755)
    options = ["rootfstype=hostfs", "rootflags=/", "rw", "mem=3072M", "con=null", "con0=fd:0,fd:1", "quiet"]
    # On one core, because the guest's kernel and its process take turns at every system call. Waking another core for
    # that takes longer than the call itself, and the guest would spend all its time on it.
    one = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0)))]
    registers = folder / "registers.so"
    subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-Wl,-z,now", REGISTERS, "-o", registers], check=True)
    guest = subprocess.Popen(
        [*one, KERNEL, *options, f"init={begin}"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "LD_PRELOAD": str(registers)},
    )
    try:
        guest.wait(TIMEOUT)
    finally:
        if guest.poll() is None:
            os.killpg(guest.pid, signal.SIGKILL)
    code = folder / "code"
    return int(code.read_text()) if code.exists() else 1


def main() -> int:
    """0 if all is well, or if netem cannot be had."""
    commands = {"tests": tests, "accuracy": accuracy, "lossy": lossy}
    parser = argparse.ArgumentParser(prog="python -m tools.guest", description=__doc__)
    parser.add_argument("command", choices=commands, nargs="?", default="tests", help="default %(default)s")
    parser.add_argument("folder", type=Path, nargs="?", help="for the records (default: a temporary one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that boot() ends the guest
    reason = why_not("netem")
    with tempfile.TemporaryDirectory(prefix="netem-") as name:
        folder = (options.folder or Path(name)).resolve()
        if not reason:
            return commands[options.command](folder)
        if shutil.which(KERNEL) and shutil.which("insmod", path=SBIN) and MODULES.is_dir():
            print(f"{reason}; in a guest:", flush=True)
            return boot([options.command, str(folder)], Path(name))
    print(f"skipped: {reason}; nor is there a guest (Debian's packages user-mode-linux and kmod)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
