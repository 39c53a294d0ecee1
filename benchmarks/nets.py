"""Networks of our own, as a user would bring them: `stepgauge predict benchmarks/nets.py:resnet18`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TOKENS, WIDTH, HEADS, BLOCKS, CLASSES = 128, 512, 8, 6, 10


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut (He et al., CVPR 2016, figure 5 left)."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, sample: Tensor) -> Tensor:
        """The block's activation."""
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(sample)))))
        out += self.shortcut(sample)
        activation: Tensor = self.relu(out)
        return activation


def resnet18() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Eight basic blocks on images of 128 x 128, with one sample of its input."""
    stages: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    stages.append(nn.MaxPool2d(3, 2, padding=1))
    channels = 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        stages += [BasicBlock(channels, filters, stride), BasicBlock(filters, filters, 1)]
        channels = filters
    stages += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*stages), (torch.randn(1, 3, 128, 128),)


class Encoder(nn.Module):
    """A transformer encoder that classifies sequences of vectors (Vaswani et al., NeurIPS 2017), without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.attention = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(BLOCKS))
        self.joined = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * BLOCKS))
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(BLOCKS))
        self.narrow = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, sample: Tensor) -> Tensor:
        """Class scores of each sequence."""
        hidden = sample + self.position
        for block in range(BLOCKS):
            heads = (*hidden.shape[:2], 3, HEADS, WIDTH // HEADS)
            query, key, value = self.attention[block](hidden).view(heads).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(query, key, value)
            hidden = self.norms[2 * block](hidden + self.joined[block](seen.transpose(1, 2).flatten(2)))
            inner = nn.functional.gelu(self.wide[block](hidden))
            hidden = self.norms[2 * block + 1](hidden + self.narrow[block](inner))
        scores: Tensor = self.head(hidden.mean(dim=1))
        return scores


def encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Six blocks of width 512 on 128 tokens, with one sample of its input."""
    return Encoder(), (torch.randn(1, TOKENS, WIDTH),)
