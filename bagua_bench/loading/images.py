"""Photographs to measure decoding with: generated ones, of the mean size of ImageNet's."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

_HEIGHT, _WIDTH, _QUALITY = 375, 500, 90
_CLASSES = 2


def make_images(root: Path, count: int) -> None:
    """Write root/train and root/val with so many JPEG files each in two classes; they show smooth noise and grain."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        coarse = torch.rand((1, 3, 12, 16), generator=generator)
        smooth = F.interpolate(coarse, (_HEIGHT, _WIDTH), mode="bicubic", align_corners=False)[0]
        grain = 0.04 * torch.randn((3, _HEIGHT, _WIDTH), generator=generator)
        pixels = ((smooth + grain).clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
        folder = root / "train" / str(number % _CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=_QUALITY)
    (root / "val").symlink_to("train")
