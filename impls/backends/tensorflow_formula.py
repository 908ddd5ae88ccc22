"""TensorFlow: the op's formula, run eagerly and differentiated by its tape."""

from gradwatch.impls.backends._tensorflow import door

backend = door(dialect="formula")
