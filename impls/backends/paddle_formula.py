"""Paddle: the op's formula, differentiated by its autograd."""

from gradwatch.impls.backends._paddle import door

backend = door(dialect="formula")
