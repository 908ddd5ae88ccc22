"""The study that compares documents of clusters finds what differs in them."""

from copy import deepcopy

import pytest

from scripts.studies.cluster import Run, verdict

RECORDS = [
    {"op": "mul", "case": f"mul[{n}]", "device": "cpu", "backend": b, "tensor": t}
    for n in (1, 2)
    for b in ("numpy_graph", "numpy_manual")
    for t in ("y", "dx")
]


def made(what, change=lambda document: None, day="2026-11-22"):
    document = {
        "environment": {"date": day, "commit": "a"},
        "summary": {"seconds": 1.0 + len(what), "judged": 8, "machines": [what]},
        "records": deepcopy(RECORDS),
    }
    change(document)
    return Run(what, document, 1.0, 0)


HERE = made("here", lambda d: d["records"].sort(key=lambda r: r["backend"]))


def test_dates_seconds_machines_and_the_order_here_are_no_difference():
    assert not [*verdict(HERE, [made("1"), made("22", day="2026-11-23")])]


def _swapped(document):
    document["records"].reverse()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["records"].pop(), "records: 8 and 7 entries"),
        (lambda d: d["records"][3].update(tensor="dz"), "tensor: 'dx' and 'dz'"),
        (lambda d: d["records"][3].update(got=1.0), "got: 'nothing' and 1.0"),
        (lambda d: d["summary"].update(judged=9), "summary.judged: 8 and 9"),
        (_swapped, "mul[1] numpy_graph y.case: 'mul[1]' and 'mul[2]'"),
        (lambda d: d.update(summary=d.pop("summary")), "the order of names differs"),
    ],
)
def test_a_document_that_differs_is_told(change, said):
    lines = [*verdict(HERE, [made("1"), made("2", change)])]
    assert any(said in line and line.startswith("1, 2: ") for line in lines), lines


def test_the_document_made_here_is_compared_too():
    lines = [*verdict(HERE, [made("1", lambda d: d["records"].pop())])]
    assert "here, 1: records: 8 and 7 entries" in lines
