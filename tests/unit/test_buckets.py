"""Bucketing: the published models' bucket tables, the closing rule, flat storage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bagua_bench.engine.buckets import make_buckets, split
from tasks.bert_large import BertLarge
from tasks.vgg16 import VGG16

MIB = 2**20


def sizes(model: nn.Module) -> list[tuple[str, int]]:
    return [(str(p.dtype), p.nbytes) for p in model.parameters()][::-1]


@pytest.fixture(scope="module")
def vgg16() -> nn.Module:
    with torch.device("meta"):
        return VGG16().model()


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    with torch.device("meta"):
        return BertLarge().model()


def test_vgg16_buckets(vgg16: nn.Module) -> None:
    listed = sizes(vgg16)
    filled = [sum(listed[i][1] for i in bucket) / MIB for bucket in split(listed, 10 * MIB)]
    assert filled == pytest.approx([15.63, 64.02, 392.02, 18.0, 18.0, 13.5, 6.62], abs=0.006)
    counts = [len(split(listed, mib * MIB)) for mib in (1, 5, 25, 64, 128)]
    assert counts == [13, 10, 5, 3, 2]


def test_bert_large_buckets(bert: nn.Module) -> None:
    listed = sizes(bert)
    assert sum(p.numel() for p in bert.parameters()) == 334_094_338
    assert [len(split(listed, mib * MIB)) for mib in (10, 25, 40)] == [73, 37, 25]
    last = split(listed, 10 * MIB)[-1]
    assert sum(listed[i][1] for i in last) >= 119 * MIB


def test_split_goes_dtype_by_dtype() -> None:
    tensors = [("f32", 4), ("f32", 12), ("f16", 10), ("f16", 14), ("f32", 44)]
    assert split(tensors, 16) == [[2, 3], [0, 1], [4]]
    assert split([("f32", n) for n in (4, 8, 12, 16, 20)], 16) == [[0, 1, 2], [3], [4]]


def test_size_zero_is_one_bucket_per_tensor() -> None:
    assert split([("f32", 4)] * 3, 0) == [[0], [1], [2]]


def test_flat_storage_is_shared_and_padded() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    before = [p.detach().clone() for p in model.parameters()]
    buckets = make_buckets([*model.parameters()][::-1], 60, multiple=4, gradients=True)
    assert [[tuple(p.shape) for p in bucket.params] for bucket in buckets] == [[(2,), (2, 5), (5,)], [(5, 3)]]
    assert [(bucket.elements, len(bucket.weight), len(bucket.grad)) for bucket in buckets] == [
        (17, 20, 20),
        (15, 16, 16),
    ]
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    for bucket in buckets:
        bucket.weight[: bucket.elements] += 1
        assert (bucket.weight[bucket.elements :] == 0).all()
        assert (bucket.grad[bucket.elements :] == 0).all()
    assert all(torch.equal(p, old + 1) for p, old in zip(model.parameters(), before, strict=True))


def test_strides_survive() -> None:
    conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    before = conv.weight.detach().clone()
    make_buckets(conv.parameters(), MIB, 1, gradients=False)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv.weight, before)


def test_frozen_and_shared_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    assert sum(len(bucket.params) for bucket in make_buckets(model.parameters(), MIB, 1, gradients=True)) == 2
