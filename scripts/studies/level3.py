"""Modules in the manner of KernelBench's third level, small."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # as in its documentation


def _conv(n: int, m: int, size: int = 3, **how: Any) -> nn.Sequential:
    conv = nn.Conv2d(n, m, size, padding=size // 2, bias=False, **how)
    return nn.Sequential(conv, nn.BatchNorm2d(m), nn.ReLU(inplace=True))


class LeNet5(nn.Module):
    """Two convolutions, then three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 5), nn.Conv2d(3, 4, 5)
        self.head = nn.Sequential(nn.Linear(100, 12), nn.ReLU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        made: Tensor = self.head(x.view(-1, 100))
        return made


class Basic(nn.Module):
    """ResNet's block with a projection."""

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.first, self.second = _conv(n, m, stride=2), nn.Conv2d(m, m, 3, padding=1)
        self.norm, self.down = nn.BatchNorm2d(m), nn.Conv2d(n, m, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return F.relu(self.norm(self.second(self.first(x))) + self.down(x))


def vgg() -> nn.Module:
    """Convolutions, pools and a head."""
    body = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    body += [nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(96, 8), nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(*body, *head, nn.Linear(8, 5))


class Inception(nn.Module):
    """Four branches beside each other."""

    def __init__(self, n: int) -> None:
        super().__init__()
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(n, 2, 1))
        wide = nn.Sequential(nn.Conv2d(n, 2, 1), nn.Conv2d(2, 2, 5, padding=2))
        narrow = nn.Sequential(nn.Conv2d(n, 2, 1), nn.Conv2d(2, 3, 3, padding=1))
        self.branches = nn.ModuleList([nn.Conv2d(n, 2, 1), narrow, wide, pool])

    def forward(self, x: Tensor) -> Tensor:
        """All of them."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Fire(nn.Module):
    """SqueezeNet's."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.squeeze, self.one = nn.Conv2d(n, 2, 1), nn.Conv2d(2, 3, 1)
        self.three, self.act = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Squeeze, then expand both ways."""
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.one(x)), self.act(self.three(x))], 1)


class Inverted(nn.Module):
    """MobileNet's inverted residual."""

    def __init__(self, n: int) -> None:
        super().__init__()
        wide = 2 * n
        self.body = nn.Sequential(
            *(nn.Conv2d(n, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(wide, n, 1), nn.BatchNorm2d(n)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """With its residual."""
        made: Tensor = x + self.body(x)
        return made


class Dense(nn.Module):
    """DenseNet's block: every layer sees all before it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_conv(n + 2 * i, 2) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        """All features."""
        seen = [x]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, 1)))
        return torch.cat(seen, 1)


class Shuffle(nn.Module):
    """ShuffleNet's unit."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.last = _conv(n, n, 1, groups=2), _conv(n, n, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        """Grouped convolutions with channels shuffled between."""
        b, n, h, w = x.shape
        made = self.first(x).view(b, 2, n // 2, h, w).transpose(1, 2).contiguous()
        out: Tensor = self.last(made.view(b, n, h, w)) + x
        return out


class UNet(nn.Module):
    """One level down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low, self.up = _conv(2, 3), _conv(3, 4), _conv(6, 2)
        self.rise = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """With a skip connection."""
        skip = self.down(x)
        low = self.low(F.max_pool2d(skip, 2))
        made: Tensor = self.up(torch.cat([skip, self.rise(low)], 1))
        return made


class CausalAttention(nn.Module):
    """MinGPT's, by softmax or by ReLU."""

    def __init__(self, n: int, heads: int, length: int, *, relu: bool = False) -> None:
        super().__init__()
        self.attn, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.heads, self.relu = heads, relu
        bias = torch.tril(torch.ones(length, length))
        self.register_buffer("bias", bias.view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        """The layer."""
        b, t, n = x.size()
        q, k, v = (
            part.view(b, t, self.heads, n // self.heads).transpose(1, 2)
            for part in self.attn(x).split(n, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / (n // self.heads) ** 0.5
        hidden = self.get_buffer("bias")[:, :, :t, :t] == 0
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = F.relu(scores) if self.relu else F.softmax(scores, dim=-1)
        made: Tensor = self.proj(
            (weights @ v).transpose(1, 2).contiguous().view(b, t, n)
        )
        return made


class Block(nn.Module):
    """MinGPT's block."""

    def __init__(self, n: int, heads: int, length: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(n), nn.LayerNorm(n)
        self.attention = CausalAttention(n, heads, length)
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then a perceptron with the GELU written out."""
        x = x + self.attention(self.one(x))
        h = self.up(self.two(x))
        cubic = (2 / torch.pi) ** 0.5 * (h + 0.044715 * torch.pow(h, 3.0))
        return x + self.down(0.5 * h * (1.0 + torch.tanh(cubic)))


class ViT(nn.Module):
    """Patches, a class token, one encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(48, 8), nn.Linear(8, 5)
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        parts = x.unfold(2, 4, 4).unfold(3, 4, 4).reshape(x.shape[0], -1, 48)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patch(parts)], 1)
        made: Tensor = self.head(self.layer(x + self.place)[:, 0])
        return made


class NetVLAD(nn.Module):
    """Residuals to centres, by soft assignment."""

    def __init__(self, clusters: int, n: int) -> None:
        super().__init__()
        self.clusters = nn.Parameter(torch.randn(n, clusters))
        self.centres = nn.Parameter(torch.randn(1, n, clusters))
        self.norm = nn.BatchNorm1d(clusters)

    def forward(self, x: Tensor) -> Tensor:
        """A vector for each batch."""
        b, n = x.size(0), x.size(2)
        weights = self.norm(x.view(-1, n) @ self.clusters).softmax(1)
        weights = weights.view(b, -1, weights.size(1))
        mass = weights.sum(dim=1, keepdim=True) * self.centres
        made = (weights.transpose(1, 2) @ x).transpose(1, 2) - mass
        return F.normalize(F.normalize(made).reshape(b, -1))


class VanillaRNN(nn.Module):
    """Keeps its hidden state between calls."""

    def __init__(self, n: int, hidden: int, m: int, batch: int) -> None:
        super().__init__()
        self.hidden = torch.randn(batch, hidden)
        self.i2h, self.h2o = nn.Linear(n + hidden, hidden), nn.Linear(hidden, m)

    def forward(self, x: Tensor) -> Tensor:
        """One step."""
        self.hidden = self.hidden.to(x.device)
        self.hidden = torch.tanh(self.i2h(torch.cat((x, self.hidden), dim=1)))
        made: Tensor = self.h2o(self.hidden)
        return made


class Recurrent(nn.Module):
    """The last output of a recurrent network, and a linear layer."""

    def __init__(self, network: nn.RNNBase) -> None:
        super().__init__()
        ways = 2 if network.bidirectional else 1
        self.network, self.head = network, nn.Linear(ways * network.hidden_size, 3)
        self.layers = ways * network.num_layers

    def forward(self, x: Tensor) -> Tensor:
        """From a state of zeros."""
        zeros = torch.zeros(self.layers, x.size(0), self.network.hidden_size)
        state = (zeros, zeros) if isinstance(self.network, nn.LSTM) else zeros
        made: Tensor = self.head(self.network(x, state)[0][:, -1, :])
        return made


def mamba2(x: Tensor, a: Tensor, b: Tensor, c: Tensor, block: int = 4) -> Tensor:
    """Mamba 2's structured state space, in blocks.

    Args:
        x: (batch, length, heads, width).
        a: (batch, length, heads), logarithms of decays.
        b, c: (batch, length, heads, states).
        block: Divides the length.
    """

    def blocked(t: Tensor) -> Tensor:
        return t.view(t.size(0), -1, block, *t.shape[2:])

    def segsum(t: Tensor) -> Tensor:
        n = t.size(-1)
        sums = t.cumsum(-1)
        hidden = ~torch.tril(torch.ones(n, n, dtype=torch.bool))
        return (sums[..., :, None] - sums[..., None, :]).masked_fill(hidden, -torch.inf)

    x, b, c = blocked(x), blocked(b), blocked(c)
    a = blocked(a).permute(0, 3, 1, 2)
    sums = a.cumsum(-1)
    inside = segsum(a).exp()
    diagonal = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, inside, x)
    decay = torch.exp(sums[..., -1:] - sums)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
    between = segsum(F.pad(sums[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    other = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, sums.exp())
    return (diagonal + other).flatten(1, 2)


class Window(nn.Module):
    """Swin's attention in a window, with its relative position bias."""

    def __init__(self, n: int, heads: int, side: int) -> None:
        super().__init__()
        self.qkv, self.heads = nn.Linear(n, 3 * n), heads
        self.table = nn.Parameter(0.1 * torch.randn((2 * side - 1) ** 2, heads))
        place = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = place[:, None] - place[None, :] + side - 1
        self.register_buffer("index", apart[..., 0] * (2 * side - 1) + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        """All windows."""
        b, t, n = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.get_buffer("index").view(-1)].view(t, t, -1)
        scores = (q * (n // self.heads) ** -0.5) @ k.transpose(-2, -1)
        weights = (scores + bias.permute(2, 0, 1)).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, n)
