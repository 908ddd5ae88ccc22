"""The night judges second orders of a share of the ops."""

import datetime

import pytest

from gradwatch.harness.nightly import judging, opinfo, parts
from gradwatch.harness.nightly.journal import Journal
from gradwatch.harness.nightly.model import Night
from gradwatch.harness.project.paths import SOURCE
from gradwatch.impls.catalogue import op_names


def night(folder, ops):
    return Night(folder, Journal(folder / "parts", {}), 60.0, ops, ["numpy_graph"])


@pytest.fixture
def today(monkeypatch):
    """Sets the date of a night."""

    def choose(day):
        class Date(datetime.date):
            @classmethod
            def today(cls):
                return cls.fromordinal(opinfo.SHARES + day)

        monkeypatch.setattr(judging.datetime, "date", Date)

    return choose


def test_all_ops_come_round(tmp_path, today, monkeypatch):
    asked = []
    monkeypatch.setattr(
        judging, "judged", lambda request, child: asked.extend(request.ops) or AGREED
    )
    for day in range(opinfo.SHARES):
        today(day)
        judging.second_orders(night(tmp_path, op_names()))
    assert sorted(asked) == sorted(op_names())


AGREED = judging.Agreement()


def test_a_share_is_judged_in_both_orders(tmp_path, today):
    today(0)
    result = judging.second_orders(night(tmp_path, ["square"]))
    assert "tensors of square judged, 0 unexpected" in result.line
    assert not result.problems


def test_without_an_op_in_turn_it_says_so(tmp_path, today):
    today(1)
    assert "turn" in judging.second_orders(night(tmp_path, ["square"])).skipped


def test_only_this_checkout_has_the_part(tmp_path):
    assert "second" not in parts.parts_of(tmp_path)
    assert "second" in parts.parts_of(SOURCE)
