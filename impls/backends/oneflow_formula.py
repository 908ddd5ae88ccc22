"""OneFlow: the op's formula, differentiated by its autograd."""

from gradwatch.impls.backends._oneflow import OneFlow

backend = OneFlow("formula")
