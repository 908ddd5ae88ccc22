"""A transformer: what is right passes, and mistakes are caught at any depth."""

import pytest

pytest.importorskip("torch")

from gradwatch.harness.judging import spread  # after importorskip
from gradwatch.harness.judging.radii import Radii  # likewise
from scripts.studies.modules import transformer_row  # likewise


def tried(layers, dtype):
    """What right gradients get, and of 18 mistakes each, of amount and of structure."""
    _, _, right, amount, structure, _ = transformer_row(layers, dtype)
    return right, *(int(found.split()[0]) for found in (amount, structure))


@pytest.mark.parametrize(("dtype", "layers"), [("float32", 6), ("float64", 2)])
def test_a_networks_gradients_agree_and_35_of_36_mistakes_are_caught(layers, dtype):
    right, amount, structure = tried(layers, dtype)
    assert right == f"{12 * layers + 1} agree"
    assert (amount >= 17, structure) == (True, 18)


def test_in_bfloat16_each_lost_path_row_or_factor_is_caught():
    right, _, structure = tried(6, "bfloat16")
    assert int(right.split()[0]) >= 12 * 6
    assert "disagree" not in right
    assert structure == 18


def test_the_bound_alone_would_catch_next_to_nothing(monkeypatch):
    monkeypatch.setattr(spread, "CURVED", float("nan"))  # it is never straight
    monkeypatch.setattr(Radii, "wholes", lambda *_, **how: {})
    _, amount, structure = tried(2, "float32")
    assert amount + structure <= 6
