"""HIPS/autograd: the op's formula, differentiated by its tape."""

from gradwatch.impls.backends._hips import door

backend = door(dialect="formula")
