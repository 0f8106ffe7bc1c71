"""Image classification: the handwritten digits bundled with scikit-learn, or a folder in ImageNet's layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset

from tasks.base import Batch, Position, Task
from tasks.loading.cached import CachedDataset
from tasks.loading.elastic import ElasticSampler
from tasks.torchvision_compat import torchvision

DIGITS_TEST = 360
"""Held-out digits of 1,797."""


class Digits(Dataset[tuple[Tensor, int]]):
    """8 x 8 handwritten digits, upsampled to (3, image, image) and normalised; a fixed, stratified split."""

    def __init__(self, image: int, train: bool) -> None:
        from sklearn.datasets import load_digits  # two seconds that other data, emulation and simulation do without
        from sklearn.model_selection import train_test_split

        pixels, labels = load_digits(return_X_y=True)
        parts = train_test_split(pixels, labels, test_size=DIGITS_TEST, stratify=labels, random_state=0)
        pixels, labels = (parts[0], parts[2]) if train else (parts[1], parts[3])
        self._pixels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
        self._labels = labels.tolist()
        self._image = image

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        size = (self._image, self._image)
        image = F.interpolate(self._pixels[index : index + 1], size, mode="bilinear", align_corners=False)
        return image[0].expand(3, -1, -1), self._labels[index]


class Decoded(Dataset[tuple[Tensor, int]]):
    """The images of a folder in ImageNet's layout, decoded: (3, height, width), uint8, and the number of the class."""

    def __init__(self, folder: Path) -> None:
        self._folder = torchvision.datasets.ImageFolder(str(folder))

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._folder[index]
        return torchvision.transforms.functional.pil_to_tensor(image), label

    def version(self, index: int) -> tuple[str, int, int]:
        """The file of a sample, its size, and when it changed."""
        name = self._folder.samples[index][0]
        state = Path(name).stat()
        return name, state.st_size, state.st_mtime_ns


class _Cropped(Dataset[tuple[Tensor, int]]):
    """Decoded images, through the steps that take Pillow's: the same numbers as from the file."""

    def __init__(self, decoded: Dataset[tuple[Tensor, int]], steps: Callable[[Any], Tensor]) -> None:
        self._decoded, self._steps = decoded, steps

    def __len__(self) -> int:
        return len(self._decoded)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._decoded[index]
        return self._steps(torchvision.transforms.functional.to_pil_image(image)), label


def image_folder(root: str, image: int, train: bool, cache: str | None = None) -> Dataset[tuple[Tensor, int]]:
    """root/train or root/val with one folder of images per class, cropped and normalised as for ImageNet.

    cache: where decoded images are kept (`CachedDataset`), before the random crop.
    """
    transforms = torchvision.transforms
    if train:
        crop = [transforms.RandomResizedCrop(image), transforms.RandomHorizontalFlip()]
    else:
        crop = [transforms.Resize(image * 256 // 224), transforms.CenterCrop(image)]
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    steps = transforms.Compose([*crop, transforms.ToTensor(), normalise])
    place = Path(root) / ("train" if train else "val")
    if cache is None:
        folder: Dataset[tuple[Tensor, int]] = torchvision.datasets.ImageFolder(str(place), steps)
        return folder
    decoded = Decoded(place)
    about = {"folder": str(place.resolve()), "torchvision": torchvision.__version__}
    return _Cropped(CachedDataset(decoded, cache, about, version=decoded.version), steps)


class ImageTask(Task):
    """Cross-entropy and top-1 accuracy on images; SGD with momentum, as in the ImageNet recipe.

    data: "digits", or a directory with train/CLASS/*.jpg and val/CLASS/*.jpg; image: pixels per side; workers:
    processes that load data; cache: a folder, or the URL of a Redis server, for decoded images of a directory.
    """

    synthetic = False

    def __init__(
        self,
        data: str,
        batch: int,
        image: int,
        lr: float,
        momentum: float,
        weight_decay: float,
        workers: int,
        cache: str | None,
    ) -> None:
        self.batch, self._data, self._image, self._workers, self._cache = batch, data, image, workers, cache
        self._recipe = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self._train = self._dataset(train=True)
        self.samples_per_epoch = len(self._train)  # type: ignore[arg-type]

    def _dataset(self, train: bool) -> Dataset[tuple[Tensor, int]]:
        if self._data == "digits":
            return Digits(self._image, train)
        return image_folder(self._data, self._image, train, self._cache)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), fused=True, **self._recipe)

    def batches(self, rank: int, size: int, seed: int) -> Iterator[Batch]:
        return self.resumed(rank, size, seed, Position())

    def resumed(self, rank: int, size: int, seed: int, begin: Position) -> Iterator[Batch]:
        if self.samples_per_epoch < size * self.batch:
            raise ValueError(
                f"task.batch={self.batch}: {size} ranks need more than the {self.samples_per_epoch} samples"
            )
        sampler = ElasticSampler(self._train, size, rank, seed=seed)
        loader = DataLoader(
            self._train,
            self.batch,
            sampler=sampler,
            num_workers=self._workers,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed * size + rank),
        )
        sampler.set_epoch(begin.epoch, begin.seen, begin.shares)
        for epoch in count(begin.epoch + 1):
            yield from loader
            sampler.set_epoch(epoch)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        training = model.training
        model.eval()
        correct = total = 0
        for images, labels in DataLoader(self._dataset(train=False), 2 * self.batch, num_workers=self._workers):
            guess = model(images.to(device)).argmax(1).cpu()
            correct += int((guess == labels).sum())
            total += len(labels)
        model.train(training)
        return {"top1": correct / total}
