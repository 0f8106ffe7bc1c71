"""ResNet-50 (He et al. 2015) on images: 25,557,032 parameters at scale paper and cpu."""

from __future__ import annotations

from typing import Literal

from torch import nn

from tasks.images import ImageTask
from tasks.torchvision_compat import torchvision


class ResNet50(ImageTask):
    """torchvision's ResNet-50. At scale tiny a bottleneck network with one block per stage, 1/16 as wide inside."""

    def __init__(
        self,
        scale: Literal["paper", "cpu", "tiny"] = "paper",
        data: str = "digits",
        batch: int = 32,
        image: int = 224,
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        workers: int = 0,
        cache: str | None = None,
        sync_bn: bool = False,
    ) -> None:
        super().__init__(data, batch, image, lr, momentum, weight_decay, workers, cache)
        self.sync_bn = sync_bn
        self._tiny = scale == "tiny"

    def model(self) -> nn.Module:
        resnet = torchvision.models.resnet
        if self._tiny:
            model: nn.Module = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=10, width_per_group=4)
        else:
            model = torchvision.models.resnet50()
        return model
