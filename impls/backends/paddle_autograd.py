"""Paddle: its own calls, which the pages name, differentiated by its autograd."""

import paddle

from gradwatch.impls.backends._paddle import door

backend = door(dialect="autograd", first=paddle, shared=False)
