"""OneFlow: its own fused calls, differentiated by its autograd."""

from gradwatch.impls.backends._oneflow import OneFlow

backend = OneFlow("autograd")
