"""A page's `custom` class on JAX: it writes through views, and is judged."""

import pytest

from tests.command_line import gradwatch
from tests.frameworks import usable
from tests.pages import plant

#: The same gradient, written in parts: by slices, a transposed and a narrow view.
IN_PARTS = """whole = 3 * x * x * dy
        dx = x.new_zeros((2, 2))
        dx.transpose(0, 1)[:, 0] += whole[:2]
        for i, place in enumerate(dx.narrow(0, 1, 1).unbind(1)):
            place.copy_(whole[2 + i : 3 + i])
        return dx.reshape(4)"""


@pytest.mark.parametrize(
    ("gradient", "code"),
    [(IN_PARTS, 0), (IN_PARTS.replace("2 + i : 3 + i", "i : 1 + i"), 1)],
    ids=["right", "wrong"],
)
def test_a_gradient_that_is_written_through_views_is_judged(tmp_path, gradient, code):
    usable("jax")
    page = plant(tmp_path, "return 3 * x * x * dy", gradient)
    asked = ("--dtype", "float32", "--regime", "normal")
    done = gradwatch("agree", "--ops", page, *asked, "--backend", "jax_custom")
    assert done.returncode == code, done
    assert ("disagree: dx" in done.stdout) == bool(code)
