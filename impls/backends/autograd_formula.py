"""HIPS/autograd: the op's formula, differentiated by its tape."""

from gradwatch.impls.backends._autograd import door

backend = door(dialect="formula")
