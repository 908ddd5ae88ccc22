"""Findings are saved and read back with all their facts."""

import json

import pytest

from gradwatch.harness.agreement import store
from gradwatch.harness.agreement.findings import Site

RECORDED = sorted(path.parent for path in store.FOLDER.glob("*/finding.json"))


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def facts(request):
    return json.loads((request.param / "finding.json").read_text())


def read_back(facts, folder):
    """The finding that some facts make, with a script beside them."""
    target = folder / facts["id"]
    target.mkdir()
    (target / "finding.json").write_text(json.dumps(facts))
    (target / "repro.py").touch()
    (finding,), troubles = store.load(folder)
    assert troubles == []
    return finding


def test_a_finding_written_before_there_was_a_part_keeps_its_site(facts, tmp_path):
    facts.pop("part", None)
    site = read_back(facts, tmp_path).site
    assert (site.id, site.place) == (facts["id"], facts["place"])


def test_a_finding_is_saved_with_the_facts_that_it_was_read_with(facts, tmp_path):
    finding = read_back(facts, tmp_path)
    again = store.facts(read_back_saved(finding, tmp_path / "again"))
    assert again == store.facts(finding)


def read_back_saved(finding, folder):
    store.save(finding, folder)
    ((saved,), _) = store.load(folder)
    return saved


def test_a_part_is_a_field_and_not_read_from_the_place(tmp_path):
    folder = store.FOLDER / "linear-oneflow_autograd-disagree-backward"
    facts = json.loads((folder / "finding.json").read_text())
    site = read_back(facts | {"part": "state"}, tmp_path).site
    assert site == Site("linear", "oneflow_autograd", "disagree", "state")
