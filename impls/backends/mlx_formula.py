"""MLX: the op's formula, differentiated by its own transformation."""

from gradwatch.impls.backends._mlx import door

backend = door(dialect="formula")
