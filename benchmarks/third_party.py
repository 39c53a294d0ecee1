"""Models as other people write them, to trace and to profile: `stepgauge trace benchmarks/third_party.py:resnet18`.

Each function returns a module and example inputs. They follow their papers and the usual implementations in what
matters here: functions beside modules, sums in place, tied weights, control flow that depends on sizes. Sizes are
parameters, so that tests can run small ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, Any]


class BasicBlock(nn.Module):
    """Two convolutions and a skip (He et al., 2016) that is added in place; of two or three axes."""

    def __init__(self, channels: int, filters: int, stride: int, axes: int = 2) -> None:
        super().__init__()
        conv, norm = {2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}[axes]
        self.conv1 = conv(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = norm(filters)
        self.conv2 = conv(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = norm(filters)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Sequential(conv(channels, filters, 1, stride, bias=False), norm(filters))
            if stride > 1 or channels != filters
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's sum."""
        identity = x if self.shortcut is None else self.shortcut(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return torch.relu_(out)


class ResNet(nn.Module):
    """A residual network of basic blocks, two a stage."""

    def __init__(self, width: int, classes: int, axes: int = 2) -> None:
        super().__init__()
        conv, norm = {2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}[axes]
        pool = {2: nn.MaxPool2d, 3: nn.MaxPool3d}[axes]
        self.stem = nn.Sequential(conv(3, width, 7, 2, 3, bias=False), norm(width), nn.ReLU(True), pool(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            filters = width << stage
            blocks.append(BasicBlock(channels, filters, 1 if stage == 0 else 2, axes))
            blocks.append(BasicBlock(filters, filters, 1, axes))
            channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        y = self.blocks(self.stem(x))
        y = y.mean(dim=tuple(range(2, y.dim())))
        return self.fc(y)  # type: ignore[no-any-return]


class WithLoss(nn.Module):
    """A classifier with its cross entropy, as a training loop runs it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        logits = self.net(x)
        return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def resnet18(width: int = 64, extent: int = 224, samples: int = 2, classes: int = 1000) -> Made:
    """ResNet-18 on images, with its loss."""
    net = WithLoss(ResNet(width, classes))
    return net, (torch.randn(samples, 3, extent, extent), torch.randint(classes, (samples,)))


def resnet3d(width: int = 16, extent: int = 32, samples: int = 2) -> Made:
    """A 3-D ResNet on clips (Tran et al., 2018)."""
    return ResNet(width, 10, axes=3), torch.randn(samples, 3, 16, extent, extent)


def vgg(width: int = 16, extent: int = 32, samples: int = 2) -> Made:
    """VGG's parts: plain convolutions, adaptive pooling, a classifier with dropout."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(3):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width << stage, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width << stage
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(channels * 4, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 10)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *head), torch.randn(samples, 3, extent, extent)


class _DenseBlock(nn.Module):
    def __init__(self, channels: int, growth: int, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels + index * growth) for index in range(count))
        self.convs = nn.ModuleList(
            nn.Conv2d(channels + index * growth, growth, 3, padding=1, bias=False) for index in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(functional.relu(norm(torch.cat(features, 1)))))
        return torch.cat(features, 1)


def densenet(growth: int = 4, count: int = 10, extent: int = 16, samples: int = 2) -> Made:
    """DenseNet's concatenations (Huang et al., 2017), of more than eight tensors."""
    block, head = _DenseBlock(8, growth, count), nn.Linear(8 + count * growth, 10)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return net, torch.randn(samples, 3, extent, extent)


class _UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = self._pair(3, width), self._pair(width, 2 * width)
        self.bottom = self._pair(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.right2 = self._pair(4 * width, 2 * width)
        self.right1 = self._pair(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(channels: int, filters: int) -> nn.Sequential:
        parts: list[nn.Module] = []
        for entering in (channels, filters):
            parts += [nn.Conv2d(entering, filters, 3, padding=1), nn.GroupNorm(2, filters), nn.SiLU()]
        return nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        bottom = self.bottom(functional.max_pool2d(two, 2))
        right = self.right2(torch.cat([two, self.up2(bottom)], dim=1))
        grown = functional.interpolate(right, scale_factor=2, mode="nearest")
        return self.head(self.right1(torch.cat([one, grown], dim=1)))  # type: ignore[no-any-return]


def unet(width: int = 8, extent: int = 32, samples: int = 2) -> Made:
    """A U-Net (Ronneberger et al., 2015): skips, one transposed convolution, one interpolation."""
    return _UNet(width), torch.randn(samples, 3, extent, extent)


def depthwise(width: int = 8, extent: int = 32, samples: int = 2) -> Made:
    """MobileNet's parts (Howard et al., 2017; Sandler et al., 2018): depthwise convolutions, ReLU6."""

    def separable(channels: int, filters: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(inplace=True),
            nn.Conv2d(channels, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.Hardswish(),
        ]

    stem = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(True)]
    body = [*separable(width, 2 * width, 1), *separable(2 * width, 4 * width, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*stem, *body, *head), torch.randn(samples, 3, extent, extent)


class _SelfAttention(nn.Module):
    """Attention written out by hand, or by torch's function."""

    def __init__(self, width: int, heads: int, *, by_hand: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.by_hand, self.causal = heads, by_hand, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        parts = self.qkv(x).view(samples, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
            if self.causal:
                above = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(above, float("-inf"))
            mixed = scores.softmax(dim=-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, *, by_hand: bool, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _SelfAttention(width, heads, by_hand=by_hand, causal=causal)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Blocks between a table of words and a projection onto it, with learnt positions."""

    def __init__(self, width: int, depth: int, vocabulary: int, tokens: int, *, decoder: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(
            _Block(width, max(1, width // 64), by_hand=decoder, causal=decoder) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if decoder:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token."""
        x = self.words(tokens) + self.positions[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def encoder(width: int = 256, depth: int = 4, vocabulary: int = 8192, tokens: int = 128, samples: int = 2) -> Made:
    """A transformer encoder (Xiong et al., 2020) with torch's attention, and the loss of every word."""
    net = WithLoss(Transformer(width, depth, vocabulary, tokens, decoder=False))
    words = torch.randint(vocabulary, (samples, tokens))
    return net, (words, words)


def decoder(width: int = 128, depth: int = 2, vocabulary: int = 512, tokens: int = 32, samples: int = 2) -> Made:
    """A decoder with attention by hand and the words' table tied to the projection (Press, Wolf, 2017)."""
    net = Transformer(width, depth, vocabulary, tokens, decoder=True)
    return net, torch.randint(vocabulary, (samples, tokens))


class _Pyramid(nn.Module):
    """Control flow that depends on sizes and on the layer's number, not on values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.entry = nn.Conv2d(3, width, 3, padding=1)
        self.shared = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        found = []
        while x.shape[-1] > 4:
            x = functional.relu(self.shared(x))
            found.append(x.mean(dim=(2, 3)))
            if len(found) % 2:
                x = functional.avg_pool2d(x, 2)
        return torch.stack(found).sum(0)


def pyramid(width: int = 8, extent: int = 16, samples: int = 2) -> Made:
    """One convolution used at several sizes, as often as the image allows."""
    return _Pyramid(width), torch.randn(samples, 3, extent, extent)


class _Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.deep = nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate(x).mean() > 0:
            x = self.deep(x)
        return x


def router(samples: int = 2) -> Made:
    """What runs next depends on values: it cannot be traced."""
    return _Router(), torch.randn(samples, 8)
