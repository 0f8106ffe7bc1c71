"""The torch.distributed backend where users close too early, ask too late, or give what does not fit."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from bagua_bench.comm.torch_groups import TorchComm
from bagua_bench.transport.held import Held
from tests.integration.cli import python
from tests.ranks import outcomes, run
from tools.transport.pair import Process

HOME = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("built")


def _group(seconds: float = 30) -> Any:
    return dist.new_group(backend="bagua_net", timeout=timedelta(seconds=seconds))


def _closed_under_an_operation(comm: TorchComm) -> str:
    group, said = _group(), ""
    if comm.rank == 0:

        def reduce() -> None:
            nonlocal said
            with pytest.raises(RuntimeError) as raised:
                dist.all_reduce(torch.ones(10), group=group)
            said = str(raised.value)

        thread = threading.Thread(target=reduce)
        thread.start()
        while not group._lane._busy.locked():
            time.sleep(0.01)
        time.sleep(0.1)
        group.abort()
        group.shutdown()
        thread.join()
    dist.barrier()
    return said


def test_a_group_may_be_closed_while_a_thread_is_in_an_operation() -> None:
    assert "aborted" in run("bagua_net", 2, _closed_under_an_operation)[0]


def test_what_is_held_goes_with_its_last_user_and_once() -> None:
    ended: list[int] = []
    held = Held("it", 7, ended.append)
    with held as first, held as second:
        assert first == second == 7
        held.close()
        told: list[int] = []
        held.tell(told.append)
        assert told == [7] and ended == []
        with pytest.raises(RuntimeError, match="it has been closed"), held:
            pass
    assert ended == [7]
    held.tell(told.append)
    held.close()
    assert ended == [7] and told == [7]


def test_what_is_held_is_never_used_after_its_end() -> None:
    for _ in range(200):
        ended, wrong = threading.Event(), []
        held = Held("it", 7, lambda _, ended=ended: ended.set())  # type: ignore[misc]

        def use(held: Held = held, ended: threading.Event = ended, wrong: list[int] = wrong) -> None:
            with contextlib.suppress(RuntimeError):
                while True:
                    with held as pointer:
                        wrong += [pointer] * ended.is_set()

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        held.close()
        for thread in threads:
            thread.join()
        assert ended.is_set() and not wrong


def _asked_after_the_end(comm: TorchComm) -> None:
    group = _group()
    work: Any = dist.irecv(torch.zeros(1), group=group, group_src=1 - comm.rank)
    group.shutdown()
    assert work.is_completed() and not work.is_success()
    for late in (work.wait, lambda: group.report(1 - comm.rank), lambda: _send(group, comm)):
        with pytest.raises(RuntimeError, match="bagua_net: the group has been "):
            late()
    dist.barrier()


def _send(group: Any, comm: TorchComm) -> None:
    dist.send(torch.zeros(1), group=group, group_dst=1 - comm.rank)


def test_calls_on_a_closed_group_are_errors() -> None:
    run("bagua_net", 2, _asked_after_the_end)


def _given_up(comm: TorchComm) -> None:
    """A receive that timed out has its memory until its message has come."""
    group = _group()
    if comm.rank == 0:
        memory = torch.zeros(1000)
        kept = weakref.ref(memory)
        work: Any = dist.irecv(memory, group=group, group_src=1)
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(seconds=0.3))
        del memory, work
        gc.collect()
        assert kept() is not None, "the peer's message would be written to memory of others"
        dist.barrier()
        deadline = time.monotonic() + 20
        while kept() is not None and time.monotonic() < deadline:
            dist.isend(torch.zeros(1), group=group, group_dst=1)
            time.sleep(0.02)
        assert kept() is None
    else:
        dist.barrier()
        dist.send(torch.ones(1000), group=group, group_dst=0)
    dist.barrier()


def test_memory_of_a_message_is_kept_until_it_has_ended() -> None:
    run("bagua_net", 2, _given_up)


def _sent_and_forgotten(comm: TorchComm) -> int:
    group = _group()
    for number in range(50):
        if comm.rank == 0:
            dist.isend(torch.full((100,), float(number)), group=group, group_dst=1)
        else:
            x = torch.zeros(100)
            dist.recv(x, group=group, group_src=0)
            assert x.eq(number).all()
    dist.barrier()
    if comm.rank == 0:
        dist.isend(torch.zeros(1), group=group, group_dst=1)
    kept = len(group._native._kept)
    dist.barrier()
    return kept


def test_messages_that_nobody_waits_for_arrive_and_leave_nothing() -> None:
    assert max(run("bagua_net", 2, _sent_and_forgotten)) <= 2


def _gathers_what_does_not_fit(comm: TorchComm) -> None:
    group, x = comm.group, torch.ones(4)
    for rows, found in [
        ([torch.empty(4)], "1 tensors to gather in: allowed: 2"),
        ([torch.empty(4), torch.empty(3)], "3 elements of torch.float32 to gather in: allowed: 4 elements"),
        ([torch.empty(4), torch.empty(4, dtype=torch.float16)], "elements of torch.float16 to gather in"),
    ]:
        with pytest.raises(ValueError, match=found):
            group.allgather([rows], [x]).wait()
    with pytest.raises(ValueError, match=r"4 elements of torch.float16 to gather in: allowed: 4 elements"):
        dist.all_gather_into_tensor(torch.empty(8, dtype=torch.float16), x, group=group)


def test_outputs_of_an_all_gather_that_do_not_fit_are_refused() -> None:
    run("bagua_net", 2, _gathers_what_does_not_fit)


def _on_another_default_device(comm: TorchComm) -> None:
    weights = torch.full((3, 4), float(comm.rank)).t()
    with torch.device("meta"):
        dist.barrier(group=comm.group)
        dist.broadcast(weights, group_src=1, group=comm.group)
    assert weights.eq(1.0).all()
    for call in (
        lambda: dist.reduce_scatter_tensor(torch.zeros(3, device="meta"), torch.ones(6), group=comm.group),
        lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(6, device="meta"), group=comm.group),
        lambda: comm.group.allgather([[torch.zeros(3)] * 2], [torch.ones(3, device="meta")]).wait(),
    ):
        with pytest.raises(ValueError, match="moves CPU tensors, not meta"):
            call()


def test_the_default_device_does_not_matter_and_other_devices_are_refused() -> None:
    run("bagua_net", 2, _on_another_default_device)


def _forked(comm: TorchComm) -> None:
    group = _group()
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()  # the lane has a thread
    if comm.rank == 0:
        child = os.fork()
        if child == 0:
            refused = 0
            for asynchronous in (False, True):
                with contextlib.suppress(RuntimeError):
                    dist.all_reduce(torch.ones(1), group=group, async_op=asynchronous)
                    continue
                refused += 1
            weakref.finalize._exitfunc()  # as at the end of an interpreter: groups close
            os._exit(refused)
        deadline, ended = time.monotonic() + 20, (0, 0)
        while ended == (0, 0):
            assert time.monotonic() < deadline, "the child does not end"
            time.sleep(0.01)
            ended = os.waitpid(child, os.WNOHANG)
        assert os.waitstatus_to_exitcode(ended[1]) == 2
    dist.barrier()
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.eq(2.0).all()


def test_a_child_process_that_ends_leaves_its_parents_connections() -> None:
    run("bagua_net", 2, _forked)


def _out_of_memory(comm: TorchComm) -> str:
    group, x = _group(), torch.ones(100_000_000)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, before[1]))
    try:
        dist.reduce(x, group_dst=0, group=group)
    except RuntimeError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return ""


def test_a_rank_without_memory_says_so_and_the_others_fail() -> None:
    first, second = run("bagua_net", 2, _out_of_memory)
    assert "out of memory" in second and "peer" in first


def _all_gradients_and_modes(comm: TorchComm) -> None:
    group, x = comm.group, torch.full((3,), float(comm.rank), requires_grad=True)
    rows = [torch.zeros(3) for _ in range(2)]
    dist.all_gather(rows, x, group=group)
    assert not any(row.requires_grad for row in rows) and rows[1].eq(1.0).all()
    flat = torch.zeros(6)
    dist.all_gather_into_tensor(flat, x, group=group)
    assert flat.tolist() == [0, 0, 0, 1, 1, 1]
    for asynchronous in (False, True):
        leaf = torch.full((3, 4), float(comm.rank)).t().requires_grad_()
        with torch.inference_mode():
            inferred = torch.full((3, 4), float(comm.rank)).t()
        for strided in (leaf, inferred):
            work = dist.broadcast(strided, group_src=1, group=group, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert strided.detach().eq(1.0).all()
        part = torch.zeros(3)
        work = dist.reduce_scatter_tensor(part, flat.clone().requires_grad_(), group=group, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert part.eq(2.0 * comm.rank).all() and not part.requires_grad


def test_autograd_has_no_part_in_what_is_moved() -> None:
    run("bagua_net", 2, _all_gradients_and_modes)


def _of_other_lengths(comm: TorchComm) -> str:
    """A message that is shorter than what waits for it leaves the rest as it is, or is refused in a collective."""
    group = _group(5)
    if comm.rank == 0:
        strided = torch.full((4, 4), 7.0).t()
        dist.recv(strided, group=group, group_src=1)
        assert strided.reshape(-1).tolist() == [1.0] * 4 + [7.0] * 12
    else:
        dist.send(torch.ones(4), group=group, group_dst=0)
    with pytest.raises(RuntimeError) as raised:
        dist.broadcast(torch.zeros(10 if comm.rank else 20), group_src=1, group=group)
        dist.all_reduce(torch.zeros(1), group=group)
    return str(raised.value)


def test_lengths_that_differ() -> None:
    first, _ = run("bagua_net", 2, _of_other_lengths)
    assert "message of 40 bytes for a buffer of 80" in first


def _two_for_one(comm: TorchComm) -> str:
    """The second message is not the rest of the first, however long the receive is."""
    group, error = _group(5), ""
    if comm.rank == 0:
        large: Tensor = torch.empty(2**30 + 4, dtype=torch.uint8)  # hardly any of it is touched
        with pytest.raises(RuntimeError) as raised:
            dist.recv(large, group=group, group_src=1)
        error = str(raised.value)
    else:
        for _ in range(2):
            dist.isend(torch.ones(4, dtype=torch.uint8), group=group, group_dst=0)
    dist.barrier()
    return error


def test_a_message_never_ends_in_a_receive_for_an_earlier_one() -> None:
    wanted = "message with tag 0 where the rest of one with tag 0 is expected"
    assert wanted in run("bagua_net", 2, _two_for_one)[0]


def _from_one_that_has_left_another(comm: TorchComm) -> str:
    """A message with another tag is all that is left of the only other rank."""
    group = _group(20)
    if comm.rank == 1:
        dist.send(torch.ones(4), group=group, group_dst=0, tag=7)
        os._exit(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        dist.recv(torch.zeros(4), group=group, tag=5)
    assert time.monotonic() - began < 10
    return str(raised.value)


def test_a_message_from_anyone_is_not_waited_for_beside_one_with_another_tag() -> None:
    assert (
        "no rank is left that could send one with tag 5" in outcomes("bagua_net", 2, _from_one_that_has_left_another)[0]
    )


def _tags(comm: TorchComm) -> None:
    for tag in (-1, 2**31):
        with pytest.raises(ValueError, match=f"tag {tag}: allowed: 0 to 2147483647"):
            comm.group.send([torch.zeros(1)], 1 - comm.rank, tag)


def test_tags_out_of_range_are_refused() -> None:
    run("bagua_net", 2, _tags)


def _of_one_that_is_gone(comm: TorchComm) -> None:
    group = _group()
    if comm.rank == 1:
        os._exit(0)
    work: Any = dist.irecv(torch.zeros(1), group=group, group_src=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"rank 1|peer"):
            work.wait()
    assert work.is_completed() and not work.is_success() and "peer" in str(work.exception())


def test_a_message_that_failed_says_why_as_often_as_it_is_asked() -> None:
    assert outcomes("bagua_net", 2, _of_one_that_is_gone)[0] is None


def _looked_at_late(comm: TorchComm) -> str:
    os.environ["BAGUA_NET_TIMEOUT"] = "0.5"
    group = _group()
    dist.barrier(group=group)
    if comm.rank == 1:
        os._exit(0)
    time.sleep(3)
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(torch.ones(1), group=group)
    return str(raised.value)


def test_a_process_that_has_ended_is_not_taken_for_a_silent_one() -> None:
    assert "closed the connection" in str(outcomes("bagua_net", 2, _looked_at_late)[0])


def _eager_here_only(comm: TorchComm) -> None:
    os.environ["BAGUA_NET_EAGER"] = "0" if comm.rank else "8"
    _group()


def _own_secret(comm: TorchComm, folder: Path) -> None:
    secret = folder / f"secret {comm.rank}"
    secret.write_text(f"of rank {comm.rank}")
    os.environ["BAGUA_NET_SECRET_FILE"] = str(secret)
    _group()


def test_ranks_that_cannot_connect_are_told_at_once(tmp_path: Path) -> None:
    wanted = "BAGUA_NET_EAGER: 8 on rank 0, 0 on rank 1; allowed: the same on all ranks"
    assert all(wanted in str(found) for found in outcomes("bagua_net", 2, _eager_here_only))
    for found in outcomes("bagua_net", 2, _own_secret, tmp_path):
        assert "BAGUA_NET_SECRET_FILE: a secret with the mark " in str(found)
        assert "allowed: the same on all ranks" in str(found)


OLD_KERNEL = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int epoll_pwait2(void) {
    char mark[300];
    snprintf(mark, sizeof mark, "%s/%d", getenv("MARKS"), getpid());
    close(creat(mark, 0600));
    errno = ENOSYS;
    return -1;
}
"""
SCRIPT = """
import torch, torch.distributed as dist
import bagua_bench.transport
dist.init_process_group("bagua_net")
x = torch.ones(3_000_000)
for _ in range(3):
    dist.all_reduce(x)
assert x.eq(8.0).all()
print("equal")
"""


def test_on_a_kernel_that_knows_only_milliseconds(tmp_path: Path) -> None:
    (tmp_path / "old.c").write_text(OLD_KERNEL)
    (tmp_path / "own.py").write_text(SCRIPT)
    library = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "old.c")], check=True)
    (tmp_path / "marks").mkdir()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {"BAGUA_NET_INTERFACES": "lo", "PYTHONPATH": str(HOME), "LD_PRELOAD": str(library)}
    done = python(tmp_path, *torchrun, "own.py", env={**env, "MARKS": str(tmp_path / "marks")}, cold=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
    assert len([*(tmp_path / "marks").iterdir()]) == 2, "in both ranks"


def test_connections_that_nccl_gave_up_while_they_were_made_are_closed(built: tuple[Path, Path]) -> None:
    process = Process(built[0], {"NCCL_SOCKET_IFNAME": "lo", "BAGUA_NET_CONNECT_TIMEOUT": "0.5"})
    try:
        process.ask("open", path=str(built[1]), symbol="ncclNetPlugin_v12")
        handle = process.ask("listen", name="never.l")["handle"]
        before = process.ask("state")["fds"]

        def give_up() -> int:
            process.ask("link", connect={"never.s": handle}, accept={}, seconds=0.05)
            return int(process.ask("state")["fds"])

        given_up = [give_up() for _ in range(3)]
        assert given_up[-1] - before == 3 * (given_up[0] - before) > 0
        time.sleep(11)
        assert give_up() == given_up[0]
    finally:
        process.end()
