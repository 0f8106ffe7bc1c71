"""Image data: the bundled digits and a folder in ImageNet's layout."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image

from bagua_bench.configuration.data_settings import DIGITS_TRAIN
from tasks.images import DIGITS_TEST, Digits
from tasks.vgg16 import VGG16


def test_digits_are_split_once_and_for_all() -> None:
    train, test = Digits(8, train=True), Digits(8, train=False)
    assert (len(train), len(test)) == (DIGITS_TRAIN, DIGITS_TEST) == (1437, 360)
    seen = {train[i][0].numpy().tobytes() for i in range(len(train))}
    fresh = [test[i][0].numpy().tobytes() not in seen for i in range(len(test))]
    assert sum(fresh) > 355  # a few of the original images are duplicates
    counts = torch.bincount(torch.tensor([test[i][1] for i in range(len(test))]))
    assert counts.min() >= 34 and counts.max() <= 38


def test_ranks_see_disjoint_parts_of_an_epoch() -> None:
    task = VGG16("tiny", batch=16, image=8)
    epoch = DIGITS_TRAIN // (3 * 16)
    images = [img.numpy().tobytes() for r in range(3) for b, _ in islice(task.batches(r, 3, 0), epoch) for img in b]
    assert len(set(images)) >= len(images) - 10


def test_batches_are_a_function_of_rank_size_and_seed() -> None:
    def first(rank: int, seed: int) -> torch.Tensor:
        return next(VGG16("tiny", batch=4, image=8).batches(rank, 2, seed))[0]

    assert torch.equal(first(0, 1), first(0, 1))
    assert not torch.equal(first(0, 1), first(1, 1))
    assert not torch.equal(first(0, 1), first(0, 2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for k in range(4):
                pixels = torch.randint(0, 256, (40, 50, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(tmp_path / part / label / f"{k}.jpg")
    return tmp_path


def test_image_folder(folder: Path) -> None:
    task = VGG16("tiny", data=str(folder), batch=2, image=32)
    assert task.samples_per_epoch == 8 and not task.synthetic
    images, labels = next(task.batches(1, 2, 0))
    assert images.shape == (2, 3, 32, 32) and set(labels.tolist()) <= {0, 1}
    model = task.model()
    assert 0 <= task.evaluate(model)["top1"] <= 1
    assert torch.isfinite(task.loss(model, (images, labels)))


def test_more_ranks_than_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"task\.batch=32"):
        next(VGG16("tiny", batch=32, image=8).batches(0, 50, 0))
