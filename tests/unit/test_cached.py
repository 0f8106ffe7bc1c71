"""The cached dataset: each sample is computed once, by whomever; damage and full disks only cost time."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tasks.images import image_folder
from tasks.loading import store
from tasks.loading.cached import CachedDataset
from tasks.transformer import Transformer
from tests.catalogue import HOME
from tests.squares import Squares, right


@pytest.fixture
def data(tmp_path: Path) -> Squares:
    return Squares(tmp_path / "log")


def close(folder: Path) -> None:
    """As if the process that used the folder had ended."""
    opened = store._OPEN.pop(folder.resolve(), None)
    if opened is not None:
        opened[1].close()


@pytest.fixture(autouse=True)
def _closed(tmp_path: Path) -> Iterator[None]:
    yield
    for folder in [*store._OPEN]:
        if folder.is_relative_to(tmp_path.resolve()):
            close(folder)


def test_a_sample_is_computed_once_for_all_epochs_and_runs(data: Squares, tmp_path: Path) -> None:
    for _ in range(2):  # runs
        cached = CachedDataset(data, tmp_path / "cache", {"power": 2})
        assert len(cached) == 30
        for _ in range(2):  # epochs
            assert all(right(cached[index], index) for index in range(30))
        cached.flush()
        close(tmp_path / "cache")
    assert data.computed() == [*range(30)]


def test_what_a_value_depends_on_is_in_its_key(data: Squares, tmp_path: Path) -> None:
    def read(**options: Any) -> int:
        before = len(data.computed())
        cached = CachedDataset(options.pop("dataset", data), tmp_path / "cache", **{"depends": {"p": 1}, **options})
        cached[3], cached.flush()
        return len(data.computed()) - before

    class Others(Squares):
        pass

    state = {"changed": 1}
    assert [read(), read(), read(depends={"p": 2}), read(depends={"p": 2})] == [1, 0, 1, 0]
    assert [read(version=lambda index: state["changed"]), read(version=lambda index: 1)] == [1, 0]
    state["changed"] = 2
    assert read(version=lambda index: state["changed"]) == 1
    assert read(dataset=Others(data.log)) == 1, "another class"
    assert [read(code=[shutil]), read(code=[shutil]), read(code=[random])] == [1, 0, 1]
    assert [read(depends={"a": 1, "b": 2}), read(depends={"b": 2, "a": 1})] == [1, 0]


def test_an_edit_of_the_code_makes_everything_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Numbers:\n def __len__(self): return 3\n def __getitem__(self, index): return index + {}\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    for added in (1, 2):
        (tmp_path / "numbered.py").write_text(source.format(added))
        sys.modules.pop("numbered", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        import numbered  # type: ignore[import-not-found]

        cached: CachedDataset[int] = CachedDataset(numbered.Numbers(), tmp_path / "cache", {})
        assert cached[1] == 1 + added
        cached.flush()


def test_a_damaged_entry_is_computed_anew_and_then_kept(data: Squares, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cached = CachedDataset(data, folder, {})
    samples = [cached[index] for index in range(30)]
    assert all(right(sample, index) for index, sample in enumerate(samples))
    cached.flush()
    close(folder)
    with lmdb.open(str(folder), map_size=2**30) as environment, environment.begin(write=True) as transaction:
        whole = dict(transaction.cursor())
        first, second, third, fourth, fifth, *_ = whole
        flipped = bytearray(whole[first])
        flipped[len(flipped) // 2] ^= 1
        transaction.put(first, bytes(flipped))
        transaction.put(second, whole[second][:40])
        transaction.put(third, b"")
        transaction.put(fourth, b"foreign")
        transaction.put(fifth, store._sealed(b"sealed, but not what torch has saved"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            cached = CachedDataset(data, folder, {})
            assert all(right(cached[index], index) for index in range(30))
            cached.flush()
    assert len(data.computed()) == 30 + 5, "the five damaged ones once more"


READ = """
import sys, warnings
from pathlib import Path
from tests.squares import Squares, right
from tasks.loading.cached import CachedDataset
try:
    cached = CachedDataset(Squares(Path(sys.argv[2])), sys.argv[1], {})
except ValueError as error:
    print(error)
else:
    for depends in ({}, {"another": 1}):
        cached = CachedDataset(Squares(Path(sys.argv[2])), sys.argv[1], depends)
        assert all(right(cached[index], index) for index in range(30))
        cached.flush()
"""


def test_a_damaged_file_gives_no_wrong_value(data: Squares, tmp_path: Path) -> None:
    """With the file's pages overwritten, and cut off; in forks, as LMDB does not survive every damage of its pages."""
    cached = CachedDataset(data, tmp_path / "cache", {})
    assert all(right(cached[index], index) for index in range(30))
    cached.flush()
    close(tmp_path / "cache")
    size = (tmp_path / "cache" / "data.mdb").stat().st_size
    draw = random.Random(0)
    statuses = []
    for number in range(24):
        folder = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "cache", folder)
        with (folder / "data.mdb").open("r+b") as stream:
            for _ in range(draw.choice((1, 8, 64))):
                stream.seek(draw.randrange(draw.choice((size, 12_000))))
                stream.write(bytes([draw.randrange(256)]))
            if number % 4 == 0:
                stream.truncate(draw.randrange(1, size))
        statuses.append(in_a_fork(folder, tmp_path / f"log-{number}"))
    assert not any(os.WIFEXITED(status) and os.WEXITSTATUS(status) for status in statuses), "a wrong value"
    assert statuses.count(0) > 20


def in_a_fork(folder: Path, log: Path) -> int:
    """The exit status of reading and writing everything, checking every value."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    status = 1
    try:
        warnings.simplefilter("ignore")
        argv, sys.argv = sys.argv, ["", str(folder), str(log)]
        exec(READ.replace("print(error)", "assert 'remove the folder' in str(error)"), {})
        sys.argv, status = argv, 0
    finally:
        os._exit(status)


def test_a_folder_that_cannot_be_used_is_an_error_in_one_line(data: Squares, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=rf"^cache={tmp_path}/file: File exists; must be a folder"):
        CachedDataset(data, tmp_path / "file", {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").write_text("not a database " * 1000)
    with pytest.raises(ValueError, match=r"^cache=.*/other: .*; remove the folder, or name another one$"):
        CachedDataset(data, tmp_path / "other", {})
    with pytest.raises(ValueError, match=r"depends: must be numbers, texts, lists"):
        CachedDataset(data, tmp_path / "cache", {"what": object()})


def test_samples_that_cannot_be_read_back_are_refused_at_once(tmp_path: Path) -> None:
    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return Image.new("RGB", (2, 2)), 0

    with pytest.raises(ValueError, match=r"a sample of type tuple cannot be cached \(.*\): make it tensors first"):
        CachedDataset(Pictures(), tmp_path / "cache", {})[0]


TENSORS = st.lists(st.integers(-9, 9), max_size=4).map(torch.tensor)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | TENSORS,
    lambda one: st.lists(one, max_size=3) | st.tuples(one, one) | st.dictionaries(st.text(max_size=3), one, max_size=3),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) and type(a) is type(b)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_values_come_back_as_they_were(tmp_path: Path, values: list[Any]) -> None:
    folder = tmp_path / "cache"
    cached: CachedDataset[Any] = CachedDataset(values, folder, {"values": repr(values)})  # type: ignore[arg-type]
    first = [cached[index] for index in range(len(values))]
    cached.flush()
    again: CachedDataset[Any] = CachedDataset([None] * len(values), folder, {"values": repr(values)})  # type: ignore[arg-type]
    assert same(first, values) and same([again[index] for index in range(len(values))], values)


def test_a_slice_of_a_large_tensor_takes_no_more_room_than_itself(tmp_path: Path) -> None:
    large = torch.randn(1000, 1000)
    cached: CachedDataset[Any] = CachedDataset([{"row": (large[0],)}], tmp_path / "cache", {})  # type: ignore[arg-type]
    assert len(cached._encoded({"row": (large[0],)})) < 8000  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_share_what_they_compute(data: Squares, tmp_path: Path, method: str, workers: int) -> None:
    cached = CachedDataset(data, tmp_path / "cache", {})
    assert right(cached[0], 0)  # the parent has the folder open
    for _ in range(workers):
        loader = DataLoader(cached, batch_size=3, num_workers=workers, multiprocessing_context=method)
        assert sorted(torch.cat([indices for _, indices in loader]).tolist()) == [*range(30)]
    assert len(data.computed()) <= 30 + 1, "sample 0 may be computed by a worker before its parent has written it"
    before = len(data.computed())
    assert all(right(cached[index], index) for index in range(30)) and len(data.computed()) == before


def test_several_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """Four processes read all samples in orders of their own, into a folder that none has made yet."""
    data = Squares(tmp_path / "log", count=120)
    pids = []
    for rank in range(4):
        pids.append(os.fork())
        if not pids[-1]:
            status = 1
            try:
                cached = CachedDataset(data, tmp_path / "cache", {})
                order = torch.randperm(120, generator=torch.Generator().manual_seed(rank)).tolist()
                status = 0 if all(right(cached[index], index) for index in order) else 2
                cached.flush()
            finally:
                os._exit(status)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    computed = len(data.computed())
    cached = CachedDataset(data, tmp_path / "cache", {})
    assert all(right(cached[index], index) for index in range(120))
    assert len(data.computed()) == computed, "every sample is there"


FULL = """
import sys, warnings
from pathlib import Path
from torch.utils.data import DataLoader
from tests.squares import Squares, right
from tasks.loading.cached import CachedDataset
data = Squares(Path(sys.argv[2]), count=60, length=30_000)
for workers in (0, 2):
    cached = CachedDataset(data, sys.argv[1], {"workers": workers})
    loader = DataLoader(cached, batch_size=None, num_workers=workers)
    for epoch in range(2):
        assert all(right(sample, index, 30_000) for index, sample in enumerate(loader))
    print("done", workers, flush=True)
"""


def test_a_full_disk_is_one_warning_and_no_caching(tmp_path: Path) -> None:
    """On a disk of 6 MiB, in a mount namespace: 60 samples of 120 kB in this process, then in two workers."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=6m none {disk} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace cannot be made here")
    environment = {**os.environ, "PYTHONPATH": str(HOME), "PYTHONWARNINGS": "always:cache="}
    run = [sys.executable, "-c", FULL, str(disk), str(tmp_path / "log")]
    done = subprocess.run([*command, *run], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "Warning: cache=" in line]
    assert len(said) == 2 and all("takes no more; is the disk full?" in line for line in said), done.stderr
    computed = Squares(tmp_path / "log").computed()
    assert 180 < len(computed) < 240, "what fitted was read, the rest computed in both epochs"


def test_a_limit_is_a_full_disk(data: Squares, tmp_path: Path) -> None:
    data.length = 5000
    cached = CachedDataset(data, tmp_path / "cache", {}, limit=2**18)
    with pytest.warns(UserWarning, match="takes no more") as said:
        for _ in range(2):
            assert all(right(cached[index], index, 5000) for index in range(30))
    assert len(said) == 1


def test_what_is_held_back_is_written_when_the_dataset_goes(data: Squares, tmp_path: Path) -> None:
    cached = CachedDataset(data, tmp_path / "cache", {})
    assert right(cached[7], 7)
    del cached
    assert right(CachedDataset(data, tmp_path / "cache", {})[7], 7) and data.computed() == [7]


def test_a_cached_dataset_can_be_pickled(data: Squares, tmp_path: Path) -> None:
    cached = CachedDataset(data, tmp_path / "cache", {})
    assert right(cached[2], 2)
    cached.flush()
    assert right(pickle.loads(pickle.dumps(cached))[2], 2) and data.computed() == [2]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis server with 8 MiB, which ends with the test."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is not installed (Debian: redis-server)")
    path = tmp_path / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--maxmemory", "8mb"]
    process = subprocess.Popen([server, *options], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            for _ in range(3000):
                if path.exists() and probe.connect_ex(str(path)) == 0:
                    break
                assert process.poll() is None
                time.sleep(0.02)
        yield f"unix://{path}"
    finally:
        process.kill()
        process.wait()


def test_a_redis_server_is_a_cache_too(data: Squares, redis: str) -> None:
    for _ in range(2):
        cached = CachedDataset(data, redis, {})
        loader = DataLoader(cached, batch_size=None, num_workers=2)
        for _ in range(2):
            assert all(right(sample, index) for index, sample in enumerate(loader))
    assert data.computed() == [*range(30)]
    assert right(pickle.loads(pickle.dumps(cached))[2], 2)


def test_a_redis_server_that_is_full_or_gone_is_one_warning(data: Squares, redis: str) -> None:
    data.length = 200_000
    cached = CachedDataset(data, redis, {})
    with pytest.warns(UserWarning, match=r"takes no more.*maxmemory") as said:
        assert all(right(cached[index], index, 200_000) for index in range(30))
    assert len(said) == 1
    other = CachedDataset(data, redis, {"another": 1})
    subprocess.run(["redis-cli", "-s", redis.removeprefix("unix://"), "shutdown", "nosave"], check=True)
    with pytest.warns(UserWarning, match="cannot be read") as said:
        assert all(right(other[index], index, 200_000) for index in range(5))
    assert len(said) == 1
    with pytest.raises(ValueError, match=r"^cache=unix://"):
        CachedDataset(data, redis, {})


def test_decoded_images_are_the_same_numbers_as_from_the_file(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    for number in range(4):
        pixels = torch.randint(0, 256, (40 + number, 50, 3), generator=draw, dtype=torch.uint8).numpy()
        for part in ("train", "val"):
            folder = tmp_path / part / str(number % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.jpg")
    for train in (True, False):
        files = image_folder(str(tmp_path), 24, train)
        for _ in range(2):
            kept = image_folder(str(tmp_path), 24, train, str(tmp_path / "cache"))
            for index in range(4):
                torch.manual_seed(index)
                image, label = files[index]
                torch.manual_seed(index)
                cached, same_label = kept[index]
                assert torch.equal(image, cached) and label == same_label
            kept._decoded.flush()  # type: ignore[attr-defined]


def test_an_image_that_is_replaced_is_decoded_anew(tmp_path: Path) -> None:
    path = tmp_path / "val" / "0" / "0.png"
    path.parent.mkdir(parents=True)
    means = []
    for level in (0, 255):
        Image.new("RGB", (30, 30), (level,) * 3).save(path)
        dataset = image_folder(str(tmp_path), 24, False, str(tmp_path / "cache"))
        means.append(float(dataset[0][0].mean()))
        dataset._decoded.flush()  # type: ignore[attr-defined]
    assert means[0] < 0 < means[1]


def test_filter_banks_from_the_cache_are_those_that_were_computed(tmp_path: Path) -> None:
    def batch(cache: str | None) -> tuple[Tensor, ...]:
        task = Transformer("tiny", batch=4, tokens=6, sampler="balanced", samples=40, cache=cache)
        return next(task.batches(0, 2, 0))

    place = str(tmp_path / "cache")
    plain, first, second = batch(None), batch(place), batch(place)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(plain, first, second, strict=True))
