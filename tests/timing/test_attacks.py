"""No page of the corpus earns a figure that its work does not, and the controls do.

Each page of tests/timing/attacks passes as right or nearly so, and is wrong, elsewhere
or not at work when it is timed. Pages of each kind go through every door by which a
time can come (tests/timing/doors.py), and one through each command as a user calls it.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from gradwatch.harness.project.paths import ROOT
from tests.frameworks import usable
from tests.timing.doors import BACKEND, DEFENCES, DOORS, SIZE

FOLDER = Path(__file__).parent / "attacks"
PAGES = {page.stem: page for page in sorted(FOLDER.glob("[a-z]*.py"))}

#: What is seen of each: reasons that name it, any of them. Where two processes are one,
#: as here, the judge may meet what the page has done before the clock does.
WRONG = "disagree|is wrong|nonfinite|malformed"
SEEN = {
    "answer_on_disk": "opens a file",
    "asks_which_numbers": f"not seen|{WRONG}",
    "bfloat16_when_hot": WRONG,
    "cached_gradient": WRONG,
    "cached_gradient_by_shape": WRONG,
    "changed_precision": "was .* and is|flushed to zero",
    "changed_threads": "was .* and is",
    "clock_constant": "has been replaced",
    "clock_in_c": "has been replaced",
    "constant_shape": WRONG,
    "deferred_gradient": f"starts a thread|{WRONG}",
    "deferred_to_a_thread": "starts a thread",
    "empty_after_calls": WRONG,
    "empty_at_random": WRONG,
    "empty_gradient_after_calls": WRONG,
    "empty_when_fast": WRONG,
    "frames_by_exception": f"not seen|{WRONG}",
    "freed_memory": WRONG,
    "gradient_of_the_forward": WRONG,
    "half_the_work": WRONG,
    "lazy_gradient": "compute later",
    "lazy_in_c": f"has been replaced|{WRONG}",
    "lazy_in_torchs_name": "compute later",
    "lazy_output": "compute later",
    "learned_places": f"not seen|{WRONG}",
    "memo_after_third_sight": "not seen",
    "patched_autograd": f"has been replaced|{WRONG}",
    "patched_code": "has been replaced",
    "patched_judge": "has been replaced",
    "patched_samples": "has been replaced",
    "patched_tensor_methods": "has been replaced",
    "patched_timer": "has been replaced",
    "patched_timer_object": "searches all objects|impossible|runs backwards",
    "reads_the_stack": "looks at its callers",
    "reference_from_memory": "searches all objects",
    "replay_by_object": WRONG,
    "rival_in_a_mode": "was 0 and is",
    "rival_slowed_by_a_patch": "has been replaced",
    "replay_by_pointer": WRONG,
    "replay_by_size": WRONG,
    "replay_by_value": WRONG,
    "reused_buffer": WRONG,
    "seven_mistakes": WRONG,
    "several_at_once": WRONG,
    "stopped_collector": "gc",
    "wrong_tail": WRONG,
}

#: Those against which unseen numbers stand, or the clocks of others, which one process
#: has not: `pytest tests/perf` (docs/timing.md says so).
UNSEEN = {name for name, seen in SEEN.items() if "not seen" in seen}

#: Attacks that succeed without the defences that stand against them, and not without
#: one of these.
FUNCTIONS, NUMBERS = "functions and settings", "unseen numbers"
ALONE = {
    "clock_in_c": [FUNCTIONS, NUMBERS],
    "memo_after_third_sight": [NUMBERS],
    "patched_code": [FUNCTIONS, NUMBERS],
    "patched_judge": [FUNCTIONS],
    "patched_samples": [FUNCTIONS, NUMBERS],
    "reads_the_stack": ["forbidden calls", NUMBERS],
}


def kind_of(page):
    """The words before the colon of its first line."""
    return page.read_text(encoding="utf-8").partition(":")[0].strip('"')


KINDS = defaultdict[str, list[str]](list)
for name in sorted(PAGES, key=lambda name: (name not in UNSEEN, name)):
    KINDS[kind_of(PAGES[name])].append(name)
CONTROLS = KINDS["Control"]


def doors_of(name):
    """Those by which a page is sent: what is of one kind shares all of them."""
    alike = KINDS[kind_of(PAGES[name])]
    share = min(len(alike), len(DOORS))
    mine = alike.index(name) % share
    return [door for n, door in enumerate(DOORS) if n % share == mine]


@pytest.fixture(scope="module")
def sent():
    """Sends a page through a door: why it gets no figure, or ""."""
    usable("torch")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.timing.doors"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def send(name, door, without=()):
        page = str(PAGES[name])
        request = {"page": page, "door": door, "without": list(without)}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        yield send
        process.stdin.close()


def test_the_corpus_has_at_least_twenty_five_attacks_and_two_controls():
    assert set(PAGES) == {*SEEN, *CONTROLS}
    assert len(SEEN) >= 25
    assert len(CONTROLS) >= 2


def test_the_table_of_docs_is_that_of_the_folder():
    """Each row has the pages of one kind, all of them."""
    text = (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \| ((?:`\w+`(?:, )?)+) \|", text, re.M)
    table = {kind: set(re.findall(r"`(\w+)`", pages)) for kind, pages in rows}
    assert table == {kind: set(names) for kind, names in KINDS.items()}


def test_each_kind_is_sent_by_every_door():
    """By `perf`, where no numbers are unseen, only what is seen without them."""
    for kind, names in KINDS.items():
        assert {d for n in names for d in doors_of(n)} == {*DOORS}, kind
    assert not [name for name in UNSEEN if "perf" in doors_of(name)]


def test_an_attack_is_refused_and_a_control_is_not(sent):
    """The quickest of each; all of them are slow tests."""
    assert re.search(SEEN["reads_the_stack"], sent("reads_the_stack", "perf"))
    assert sent("honest_checkpoint", "perf") == ""


def refusal(sent, name, door):
    """Why a page gets no figure, or "".

    Which results are judged is drawn, and no seed is known: nine of them miss a page
    that cheats in a third of its calls with a chance of (2/3)^9 = 2.6 %. And beside
    others the samples may take as much longer as a clock is turned back: then the
    figure is no cheat's. So it is sent five times at most.
    """
    return next(filter(None, (sent(name, door) for _ in range(5))), "")


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_an_attack_earns_no_figure_and_the_reason_names_it(sent, name):
    reasons = {door: refusal(sent, name, door) for door in doors_of(name)}
    refused = [door for door, why in reasons.items() if re.search(SEEN[name], why)]
    assert refused == [*reasons], reasons


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_an_honest_page_does(sent, name):
    doors = DOORS if name == "honest" else doors_of(name)
    assert {door: sent(name, door) for door in doors} == dict.fromkeys(doors, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_an_attack_succeeds_where_its_defence_is_taken_away(sent, name):
    assert set(ALONE[name]) <= set(DEFENCES)
    # One success is enough: on a busy machine unseen numbers may look slow.
    assert "" in (sent(name, "asv", without=ALONE[name]) for _ in range(3))


# --- as a user would call it -------------------------------------------------------


def gradwatch(command, *arguments):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gradwatch", command),
            *(*map(str, arguments), "--json", "-"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    document = json.loads(done.stdout)
    return document["records"], document["summary"]


def timed(name, *options):
    usable("torch")
    return gradwatch(
        *("time", "--ops", PAGES[name], "--size", SIZE, "--dtype", "float32"),
        *("--backend", BACKEND, "--budget", "0.5", *options),
    )


@pytest.mark.slow
def test_gradwatch_time_shows_no_figure_of_an_attack():
    records, summary = timed("patched_judge")
    assert records == []
    (why,) = summary["untimed"].values()
    assert re.search(SEEN["patched_judge"], why), why


@pytest.mark.slow
def test_gradwatch_time_shows_those_of_an_honest_page_on_its_own_threads():
    records, summary = timed("honest", "--threads", "2")
    assert summary["untimed"] == {}
    assert [record["phase"] for record in records] == ["forward", "backward"]


@pytest.mark.slow
def test_a_comparison_refuses_a_side_that_only_works_until_it_is_judged():
    usable("torch")
    records, summary = gradwatch(
        *("compare", "torch_autograd", BACKEND, "--ops", PAGES["empty_after_calls"]),
        *("--size", SIZE, "--dtype", "float32", "--phase", "forward"),
        *("--budget", "0.5"),
    )
    assert records == []
    assert "a timed forward is wrong" in summary["failed"][0]
