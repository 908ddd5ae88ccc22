"""The night judges second orders of a share of the ops."""

import datetime
from dataclasses import replace

import pytest

from gradwatch.harness.nightly import night as parts
from gradwatch.harness.nightly.night import Ended, Night
from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import PROJECT
from gradwatch.harness.project.records import AGREE, AgreeSummary
from gradwatch.impls.catalogue import op_names


def night(folder, ops):
    return Night(folder, 60.0, ops, ["numpy_graph"])


@pytest.fixture
def today(monkeypatch):
    """Sets the date of a night."""

    def choose(day):
        class Date(datetime.date):
            @classmethod
            def today(cls):
                return cls.fromordinal(parts.SHARES + day)

        monkeypatch.setattr(parts.datetime, "date", Date)

    return choose


def test_all_ops_come_round(tmp_path, today, monkeypatch):
    asked = []

    def called(night, part, kind, *call):
        asked.extend(call[i + 1] for i, word in enumerate(call) if word == "--op")
        return documents.document([], AgreeSummary()), Ended(part, 0, "")

    monkeypatch.setattr(Night, "document", called)
    for day in range(parts.SHARES):
        today(day)
        parts.second_orders(night(tmp_path, op_names()))
    assert sorted(asked) == sorted(op_names())


def test_a_share_is_judged_in_both_orders(tmp_path, today):
    today(0)
    one = night(tmp_path, ["square"])
    result = parts.second_orders(one)
    assert "tensors judged, 0 unexpected" in result.line
    assert not result.problems
    records = documents.read(one.piece("second"), AGREE).records
    assert {record.order for record in records} == {"jvp", "hvp"}


def test_without_an_op_in_turn_it_says_so(tmp_path, today):
    today(1)
    result = parts.second_orders(night(tmp_path, ["square"]))
    assert (result.skipped, "turn" in result.line) == (True, True)


@pytest.mark.parametrize("step", [1, 2, 7], ids=["nightly", "every other", "weekly"])
def test_every_share_comes_round(step):
    days = range(738_000, 738_000 + step * parts.SHARES, step)
    assert sorted(day % parts.SHARES for day in days) == [*range(parts.SHARES)]


def test_a_project_of_ones_own_leaves_it_out_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PROJECT", replace(PROJECT, table=True))
    result = parts.second_orders(night(tmp_path, []))
    assert (result.skipped, "gradwatch itself" in result.line) == (True, True)
