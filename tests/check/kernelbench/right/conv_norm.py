import torch


class ModelNew(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        z, norm = self.conv(x), self.norm
        mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3), unbiased=False)
        count = z.numel() // z.shape[1]
        with torch.no_grad():
            norm.running_mean.lerp_(mean, 0.1)
            norm.running_var.lerp_(var * count / (count - 1), 0.1)
            norm.num_batches_tracked.add_(1)
        scale = (norm.weight * torch.rsqrt(var + norm.eps))[:, None, None]
        z = (z - mean[:, None, None]) * scale + norm.bias[:, None, None]
        return torch.tanh(z).mean((2, 3))
