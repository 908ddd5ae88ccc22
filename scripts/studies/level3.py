"""Modules in the manner of KernelBench's third level, small."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # as in its documentation


def conv(n: int, m: int, size: int = 3, **how: Any) -> nn.Sequential:
    """A convolution of the same size, a batch norm and a ReLU."""
    made = nn.Conv2d(n, m, size, padding=size // 2, bias=False, **how)
    return nn.Sequential(made, nn.BatchNorm2d(m), nn.ReLU(inplace=True))


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
        self.first, self.second = conv(n, m, stride=2), nn.Conv2d(m, m, 3, padding=1)
        self.norm, self.down = nn.BatchNorm2d(m), nn.Conv2d(n, m, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return F.relu(self.norm(self.second(self.first(x))) + self.down(x))


def vgg(depth: int) -> nn.Module:
    """Two stages of some convolutions, a pool behind each, and a head."""
    body: list[nn.Module] = []
    for n, m in ((3, 4), (4, 6)):
        for width in (n, *[m] * (depth - 1)):
            body += [nn.Conv2d(width, m, 3, padding=1), nn.ReLU(inplace=True)]
        body.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(96, 8), nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(*body, *head, nn.Linear(8, 5))


def net(*body: nn.Module, width: int, flat: int = 1) -> nn.Module:
    """Layers of an image, averaged, and a linear layer behind them."""
    pooled = nn.AdaptiveAvgPool2d(flat), nn.Flatten()
    return nn.Sequential(*body, *pooled, nn.Linear(width * flat**2, 5))


def alexnet() -> nn.Module:
    """Five convolutions, three pools, three linear layers."""
    layers: list[nn.Module] = []
    for n, m, size, how in (
        *((3, 4, 11, {"stride": 4, "padding": 2}), (4, 6, 5, {"padding": 2})),
        *((6, 8, 3, {"padding": 1}), (8, 8, 3, {"padding": 1})),
        (8, 6, 3, {"padding": 1}),
    ):
        layers += [nn.Conv2d(n, m, size, **how), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] if m != 8 else []
    head = [nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.0), nn.Linear(12, 12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(12, 5))


def separable(n: int, m: int, stride: int = 1) -> nn.Module:
    """MobileNet's depthwise convolution, then a pointwise one."""
    return nn.Sequential(conv(n, n, groups=n, stride=stride), conv(n, m, 1))


def transition(n: int) -> nn.Module:
    """DenseNet's, which halves width and size."""
    half = nn.Conv2d(n, n // 2, 1, bias=False)
    return nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), half, nn.AvgPool2d(2))


def stage(n: int, m: int) -> nn.Module:
    """RegNet's as KernelBench writes it."""
    return nn.Sequential(conv(n, m), conv(m, m), nn.MaxPool2d(2))


class Bottleneck(nn.Module):
    """ResNet's, four times as wide behind as inside."""

    def __init__(self, n: int, m: int, stride: int = 1) -> None:
        super().__init__()
        inside = conv(n, m, 1), conv(m, m, stride=stride)
        self.body = nn.Sequential(
            *inside, nn.Conv2d(m, 4 * m, 1), nn.BatchNorm2d(4 * m)
        )
        down = nn.Conv2d(n, 4 * m, 1, stride=stride, bias=False)
        self.down = nn.Sequential(down, nn.BatchNorm2d(4 * m))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return F.relu(self.body(x) + self.down(x))


class MBConv(nn.Module):
    """EfficientNet's, with squeeze and excitation."""

    def __init__(self, n: int, m: int, stride: int = 1, wide: int = 2) -> None:
        super().__init__()
        k = n * wide
        self.expand = conv(n, k, 1) if wide > 1 else nn.Identity()
        self.depthwise = conv(k, k, groups=k, stride=stride)
        squeeze = nn.AdaptiveAvgPool2d(1), nn.Conv2d(k, 2, 1), nn.SiLU()
        self.gate = nn.Sequential(*squeeze, nn.Conv2d(2, k, 1), nn.Sigmoid())
        self.project = nn.Sequential(nn.Conv2d(k, m, 1), nn.BatchNorm2d(m))
        self.residual = n == m and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """With its residual where shapes allow it."""
        h = self.depthwise(self.expand(x))
        y: Tensor = self.project(h * self.gate(h))
        return x + y if self.residual else y


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
        self.layers = nn.ModuleList([conv(n + 2 * i, 2) for i in range(3)])

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
        self.first, self.last = conv(n, n, 1, groups=2), conv(n, n, 1, groups=2)

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
        self.down, self.low, self.up = conv(2, 3), conv(3, 4), conv(6, 2)
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
    """Residuals to centres, by soft assignment; those of ghost centres are left out."""

    def __init__(self, clusters: int, n: int, ghosts: int = 0) -> None:
        super().__init__()
        self.clusters = nn.Parameter(torch.randn(n, clusters + ghosts))
        self.centres = nn.Parameter(torch.randn(1, n, clusters))
        self.norm, self.kept = nn.BatchNorm1d(clusters + ghosts), clusters

    def forward(self, x: Tensor) -> Tensor:
        """A vector for each batch."""
        b, n = x.size(0), x.size(2)
        weights = self.norm(x.view(-1, n) @ self.clusters).softmax(1)[:, : self.kept]
        weights = weights.reshape(b, -1, weights.size(1))
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


class Part(nn.Module):
    """One of the results of a recurrent network, from a given state."""

    def __init__(self, network: nn.RNNBase, *which: int) -> None:
        super().__init__()
        self.network, self.which = network, which

    def forward(self, x: Tensor, *state: Tensor) -> Any:
        """Outputs, or a state at the end."""
        made = self.network(x, state if len(state) > 1 else state[0])
        for place in self.which:
            made = made[place]
        return made


class Steps(nn.Module):
    """A vanilla recurrent network over a sequence, with its hidden state given."""

    def __init__(self, n: int, hidden: int, m: int) -> None:
        super().__init__()
        self.i2h, self.h2o = nn.Linear(n + hidden, hidden), nn.Linear(hidden, m)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """An output for each step."""
        made = []
        for step in x:
            h = torch.tanh(self.i2h(torch.cat((step, h), dim=1)))
            made.append(self.h2o(h))
        return torch.stack(made)


class Pixels(nn.Module):
    """Attention among the pixels of an image, then a layer norm."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(n, heads), nn.LayerNorm(n)

    def forward(self, x: Tensor) -> Tensor:
        """The image."""
        b, n, h, w = x.shape
        x = x.view(b, n, h * w).permute(2, 0, 1)
        x = self.norm(self.attention(x, x, x)[0] + x)
        return x.permute(1, 2, 0).view(b, n, h, w)


class ConvViT(nn.Module):
    """Patches by a convolution, encoder layers on one token, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.flat = nn.Conv2d(3, 4, 4, stride=4), nn.Linear(16, 8)
        self.token, self.head = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 5)
        layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0) for _ in range(2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.flat(self.patch(x).flatten(start_dim=1))
        x = torch.cat([self.token.expand(len(x), -1, -1), x.unsqueeze(1)], dim=1)
        made: Tensor = self.head(self.layers(x)[:, 0])
        return made


def mamba2(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    block: int = 4,
    *,
    final: bool = False,
) -> Tensor:
    """Mamba 2's structured state space, in blocks.

    Args:
        x: (batch, length, heads, width).
        a: (batch, length, heads), logarithms of decays.
        b, c: (batch, length, heads, states).
        block: Divides the length.
        final: Return the last state in place of the outputs.
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
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)
    if final:
        return states[:, -1]
    states = states[:, :-1]
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


class CosineWindow(Window):
    """Swin V2's: cosines with a learnt scale, and a bias made by a perceptron."""

    def __init__(self, n: int, heads: int, side: int) -> None:
        super().__init__(n, heads, side)
        self.scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        bias = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, heads, bias=False)
        self.bias, place = nn.Sequential(*bias), torch.arange(1.0 - side, side)
        grid = 8 * torch.cartesian_prod(place, place) / max(side - 1, 1)
        self.register_buffer("grid", grid.sign() * (grid.abs() + 1).log2() / 3)
        del self.table

    def forward(self, x: Tensor) -> Tensor:
        """All windows."""
        b, t, n = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * self.scale.clamp(max=4.6).exp()
        bias = self.bias(self.get_buffer("grid"))[self.get_buffer("index").view(-1)]
        bias = 16 * torch.sigmoid(bias.view(t, t, -1).permute(2, 0, 1))
        weights = (scores + bias).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, n)


class SwinMLP(nn.Module):
    """Swin's block with a grouped convolution in place of attention."""

    def __init__(self, n: int, heads: int, side: int) -> None:
        super().__init__()
        self.side, self.heads = side, heads
        self.one, self.two = nn.LayerNorm(n), nn.LayerNorm(n)
        self.spatial = nn.Conv1d(heads * side**2, heads * side**2, 1, groups=heads)
        self.mlp = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for an image, channels last."""
        b, h, w, n = x.shape
        s = self.side
        parts = self.one(x).view(b, h // s, s, w // s, s, n).transpose(2, 3)
        parts = parts.reshape(-1, s * s, self.heads, n // self.heads).transpose(1, 2)
        mixed = self.spatial(parts.reshape(-1, self.heads * s * s, n // self.heads))
        mixed = mixed.view(-1, self.heads, s * s, n // self.heads).transpose(1, 2)
        mixed = mixed.reshape(b, h // s, w // s, s, s, n).transpose(2, 3)
        x = x + mixed.reshape(b, h, w, n)
        made: Tensor = x + self.mlp(self.two(x))
        return made
