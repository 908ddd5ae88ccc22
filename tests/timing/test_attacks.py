"""No page of the corpus earns a figure that its work does not, and the controls do.

Each page of tests/timing/attacks computes the right thing in a plain call, and is
wrong, elsewhere or not at work when it is timed. Each is run as a user would run it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.project.paths import ROOT
from tests.frameworks import usable

FOLDER = Path(__file__).parent / "attacks"
PAGES = {page.stem: page for page in sorted(FOLDER.glob("[a-z]*.py"))}
CONTROLS = {"honest", "honest_in_place"}
BACKEND = "torch_custom"

#: What is seen of each: reasons that name it, any of them.
WRONG = "disagree|is wrong|nonfinite|malformed"
SEEN = {
    "answer_on_disk": f"opens a file|{WRONG}",
    "cached_gradient": WRONG,
    "cached_gradient_by_shape": WRONG,
    "changed_precision": "was .* and is|Storage has been replaced",
    "changed_threads": "was .* and is|other threads",
    "constant_shape": WRONG,
    "deferred_gradient": f"thread|{WRONG}",
    "deferred_to_a_thread": f"thread|opens a file|{WRONG}",
    "empty_after_calls": WRONG,
    "empty_at_random": WRONG,
    "empty_gradient_after_calls": WRONG,
    "empty_when_fast": WRONG,
    "freed_memory": WRONG,
    "gradient_of_the_forward": WRONG,
    "half_the_work": WRONG,
    "lazy_output": "compute later",
    "patched_autograd": f"has been replaced|{WRONG}",
    "patched_judge": f"has been replaced|{WRONG}",
    "patched_samples": "has been replaced|no such time|not a positive|other threads",
    "patched_timer": "has been replaced",
    "patched_timer_object": "searches all objects",
    "reads_the_stack": f"looks at its callers|{WRONG}",
    "reference_from_memory": "searches all objects",
    "replay_by_object": WRONG,
    "replay_by_pointer": WRONG,
    "replay_by_size": WRONG,
    "replay_by_value": f"does not do its work again|{WRONG}",
    "reused_buffer": WRONG,
    "stopped_collector": f"gc|{WRONG}",
    "wrong_tail": WRONG,
}


def gradwatch(command, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "harness", command, *map(str, arguments), "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    document = json.loads(done.stdout)
    return document["records"], document["summary"]


def timed(page, budget=0.5):
    return gradwatch(
        *("time", "--ops", page, "--size", "65536", "--dtype", "float32"),
        *("--backend", BACKEND, "--budget", budget),
    )


def test_the_corpus_has_at_least_twenty_five_attacks_and_two_controls():
    assert set(PAGES) == {*SEEN, *CONTROLS}
    assert len(SEEN) >= 25


@pytest.mark.parametrize("name", SEEN)
def test_the_table_of_docs_has_each_attack(name):
    assert f"`{name}`" in (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_an_attack_earns_no_figure_and_is_told_what_was_seen(name):
    usable("torch")
    records, summary = timed(PAGES[name])
    assert records == []
    (why,) = summary["untimed"].values()
    assert re.search(SEEN[name], why), why


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONTROLS))
def test_an_honest_page_does(name):
    usable("torch")
    records, summary = timed(PAGES[name])
    assert summary["untimed"] == {}
    assert [record["phase"] for record in records] == ["forward", "backward"]


@pytest.mark.slow
def test_a_comparison_refuses_a_side_that_only_works_until_it_is_judged():
    usable("torch")
    records, summary = gradwatch(
        *("compare", "torch_autograd", BACKEND, "--ops", PAGES["empty_after_calls"]),
        *("--size", "65536", "--dtype", "float32", "--phase", "forward"),
        *("--budget", "0.5"),
    )
    assert records == []
    assert "a timed forward is wrong" in summary["failed"][0]
