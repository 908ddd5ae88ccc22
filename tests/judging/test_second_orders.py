"""The study of planted second-order mistakes counts what it says."""

import pytest

from scripts.studies import second_orders
from scripts.studies.second_orders import DETACHED, EDGES, planted

KINDS = {*EDGES, *DETACHED}


@pytest.mark.parametrize("op", ["silu", "softmax"])
def test_every_kind_of_mistake_is_planted_and_caught(op):
    figures = planted([op], seed=3)
    assert figures["caught"] == figures["of"] > 100
    assert set(figures) >= KINDS


def test_a_judge_that_sees_nothing_catches_nothing(monkeypatch):
    monkeypatch.setattr(second_orders, "judge_tensors", lambda *_, **__: ())
    figures = planted(["silu"], seed=3)
    assert figures["caught"] == 0
    assert len(figures["missed"]) == figures["of"]


def test_what_moves_nothing_is_not_counted(monkeypatch):
    monkeypatch.setattr(second_orders, "EFFECT", float("inf"))
    monkeypatch.setattr(second_orders, "EACH", 1)
    with pytest.raises(ZeroDivisionError):  # no share of no mistakes
        planted(["silu"], seed=3)
