"""timm 1.0.31: LeViT's attention biases get no second gradient in evaluation mode.

In evaluation `get_attention_biases` keeps the biases that it has gathered, and with them
their graph: a second backward raises, and after a call without gradients there is none
at all. A step of an optimizer is not seen. So are EfficientFormer, EfficientViT (MSRA)
and TinyViT.
"""

import sys

import torch
from timm.models.levit import LevitDistilled

torch.manual_seed(0)
model = LevitDistilled(
    img_size=32, embed_dim=(16,), key_dim=4, depth=(1,), num_heads=(2,)
)
model.eval()
biases = next(p for n, p in model.named_parameters() if "attention_biases" in n)
x = torch.randn(1, 3, 32, 32)
with torch.no_grad():
    model(x)
model(x).sum().backward()
print(f"got {biases.grad}, expected a tensor {tuple(biases.shape)}")
sys.exit(biases.grad is None)
