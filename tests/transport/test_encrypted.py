"""The recipe of docs/encryption.md: over it ranks work, nothing can be read, and strangers change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.catalogue import HOME
from tools.transport import shaped, tunnel
from tools.transport.pair import GROUP, Pair

Sites = tuple[shaped.Site, shaped.Site]
_PATIENCE = 120.0
_COUNT = 1 << 20


@pytest.fixture
def sites() -> Iterator[Sites]:
    if reason := tunnel.unavailable():
        pytest.skip(reason)
    with shaped.pair() as both:
        yield both


def test_the_configuration_is_that_of_the_page() -> None:
    words = [f"{whose} KEY OF {which} SERVER" for whose, which in (("PRIVATE", "THIS"), ("PUBLIC", "THE OTHER"))]
    text = tunnel.configuration(words[0], "10.98.0.1", words[1], "10.98.0.2", "ADDRESS OF THE OTHER SERVER")
    assert f"```ini\n{text}```" in Path(HOME, "docs", "encryption.md").read_text()


REDUCES = """
import sys, torch, torch.distributed as dist, bagua_bench.transport
dist.init_process_group("bagua_net")
x = torch.ones(int(sys.argv[1]))
for _ in range(3):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
assert torch.equal(x, torch.ones(int(sys.argv[1])))
dist.barrier()
dist.destroy_process_group()
"""

LISTENS = """
import socket, struct, sys
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
frames.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
frames.bind((sys.argv[1], 0))
print("listening", flush=True)
ones, size, readable, others = struct.pack("<f", 1.0) * 25, 0, 0, 0
frames.settimeout(0.5)
while True:
    try:
        frame = frames.recv(1 << 17)
    except TimeoutError:
        continue
    if frame[-8:] == b"the end.":
        break
    wireguard = frame[12:14] == b"\\x08\\0" and frame[23] == 17 and 51820 in struct.unpack_from("!HH", frame, 34)
    size += len(frame)
    readable += len(frame) * (ones in frame)
    others += not wireguard and frame[12:14] in (b"\\x08\\0", b"\\x86\\xdd") and frame[20:21] != b"\\x3a"
print(size, readable, others)
"""

ENDS = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
s.send(bytes(12) + b"\\x88\\xb5" + bytes(60) + b"the end.")
"""


def test_what_travels_can_be_read_without_the_tunnel_and_not_with_it(sites: Sites, tmp_path: Path) -> None:
    script = tmp_path / "reduces.py"
    script.write_text(REDUCES)
    size, readable, others = _overheard(sites, sites, script)
    assert readable > 2 * 4 * _COUNT and others > 100, "what the listener looks for is there to be found"
    with tunnel.up(sites) as inner:
        size, readable, others = _overheard(sites, inner, script)
    assert size > 2 * 4 * _COUNT, "all of it has passed the listener"
    assert (readable, others) == (0, 0)


def _overheard(sites: Sites, used: Sites, script: Path) -> tuple[int, int, int]:
    """What passes the outer link while two ranks work over `used`: bytes, those of frames that can be read, and packets
    that are not WireGuard's."""
    where = sites[1].interface
    with _python(sites[1], "-c", LISTENS, where) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "listening\n"
        _work(used, script)
        with _python(sites[0], "-c", ENDS, where) as end:
            assert end.wait(_PATIENCE) == 0
        size, readable, others = listener.communicate(timeout=_PATIENCE)[0].split()
    return int(size), int(readable), int(others)


def _work(used: Sites, script: Path) -> None:
    """Two ranks, under torchrun as the page says."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d", "--nproc-per-node=1"]
    torchrun.append(f"--rdzv-endpoint={used[0].address}:29500")
    with ExitStack() as ends:
        agents = []
        for k, site in enumerate(used):
            own = [f"--rdzv-conf=is_host={int(k == 0)}", f"--local-addr={site.address}", str(script), str(_COUNT)]
            agents.append(ends.enter_context(_python(site, *torchrun, *own)))
        for agent in agents:
            said = agent.communicate(timeout=_PATIENCE)[1]
            assert agent.returncode == 0, said


@contextmanager
def _python(site: shaped.Site, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program on a site; it is killed on leaving."""
    environment = {**os.environ, "BAGUA_NET_INTERFACES": f"={site.interface}"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    running = subprocess.Popen(
        [*site.prefix, sys.executable, *arguments], cwd=HOME, env={**environment, "PYTHONPATH": str(HOME)}, text=True,
        **pipes,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


ANNOYS = """
import os, random, socket, sys, time
address, port, inside, ports = sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(text) for text in sys.argv[4:]]
noise, held = random.Random(1), []
for k in range(100):
    s = socket.create_connection((inside, noise.choice(ports)), 5)
    s.sendall(noise.randbytes(noise.choice([0, 1, 24, 64])))
    held.append(s)
print("there", flush=True)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    first = noise.choice([b"\\x01\\0\\0\\0", b"\\x02\\0\\0\\0", b"\\x04\\0\\0\\0", noise.randbytes(4)])
    datagrams.sendto(first + noise.randbytes(noise.choice([28, 88, 144, 1000])), (address, port))
    time.sleep(0.001)
"""


def test_strangers_change_nothing(sites: Sites, built: tuple[Path, Path]) -> None:
    """They come in beside the tunnel, as somebody on the same Ethernet could."""
    with tunnel.up(sites) as inner:
        prefixes = (inner[0].prefix, inner[1].prefix)
        with Pair(*built, GROUP, {"NCCL_SOCKET_IFNAME": tunnel.prefix()}, prefixes) as pair:
            listening = inner[0].run("ss", "-Hltn", "src", inner[0].address).split("\n")
            ports = [line.split()[3].rpartition(":")[2] for line in listening if line]
            past = (f"{inner[0].address}/32", "via", sites[0].address)
            inner[1].run("ip", "route", "add", *past)
            outside = (sites[0].address, str(tunnel.PORT), inner[0].address, *ports)
            with _python(sites[1], "-c", ANNOYS, *outside) as stranger:
                assert stranger.stdout is not None and stranger.stderr is not None
                assert stranger.stdout.readline() == "there\n", stranger.stderr.read()
                inner[1].run("ip", "route", "delete", *past)
                pair.link()
                sent, got = pair.stream(size=2**20, window=4, count=50, check=7)
                assert sent["bytes"] > 0 and got["messages"] > 0
                assert stranger.poll() is None


def test_nothing_is_left(sites: Sites, built: tuple[Path, Path]) -> None:
    with tunnel.up(sites) as (a, _):
        assert a.interface in a.run("ip", "-o", "link")
    assert tunnel.prefix() not in sites[0].run("ip", "-o", "link")
    assert not list(Path("/var/run/wireguard").glob(f"{tunnel.prefix()}*"))
