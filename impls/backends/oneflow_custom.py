"""OneFlow: the page's hand-written autograd.Function."""

from gradwatch.impls.backends._oneflow import OneFlow

backend = OneFlow("custom")
