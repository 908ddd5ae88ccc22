"""ctc_loss: the gradient is that by what log_softmax was given, not by its argument.

Seen: at every input. The backward returns exp(log_probs) minus the share of each label,
where the slope is minus that share alone. Behind log_softmax both give one gradient, as
its backward takes away what they differ by; log probabilities that come from elsewhere
(a mask, label smoothing, an average of models) get a wrong one.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("nn_functional_ctc_loss",)

x = torch.log(torch.tensor([[[0.25, 0.75]]], dtype=torch.float64)).requires_grad_()
target, one = torch.tensor([[1]]), torch.tensor([1])
loss = torch.nn.functional.ctc_loss(x, target, one, one, reduction="sum")
(got,) = torch.autograd.grad(loss, x)
# One step and one label: the loss is -x[0, 0, 1].
expected = [0.0, -1.0]
print(f"torch {torch.__version__}: got {got.flatten().tolist()}, expected {expected}")
sys.exit(got.flatten().tolist() != expected)
