"""Following one trial through `agree` takes few stops, in few files.

Who reads it from `verdicts` on reads each function once, where it is first called, and
goes back to its caller for the next one: a stop is each change of the file on that way.
The worker, which runs the trial, is another walk.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

import gradwatch.harness
from gradwatch.harness.agreement.suite import verdicts
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.defects import known
from gradwatch.harness.workers.pool import Task
from gradwatch.impls.catalogue import load_op

HARNESS = Path(gradwatch.harness.__file__).parent
BACKENDS = ("numpy_graph", "numpy_manual", "torch_autograd")


def walked(walk):
    """The files where calling it stops, in order."""
    seen, stops = set(), []

    def file_of(frame):
        while frame and HARNESS not in (path := Path(frame.f_code.co_filename)).parents:
            frame = frame.f_back
        return str(path.relative_to(HARNESS)) if frame else ""

    def look(frame, event, _):
        code = frame.f_code
        ours = HARNESS in Path(code.co_filename).parents
        if event == "call" and ours and code.co_name[0] != "<" and code not in seen:
            seen.add(code)
            for file in (file_of(frame.f_back), file_of(frame)):
                if file and stops[-1:] != [file]:
                    stops.append(file)

    sys.setprofile(look)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return stops


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "relu", "attention"])
def test_a_trial_takes_forty_stops_in_fifteen_files(fleet, op):
    known_outcomes = known.load()
    cases = trials(load_op(op), regimes=["normal"], dtypes=["float32"])
    first, second = (
        [Task(trial, backend) for backend in BACKENDS]
        for trial, _ in zip(cases, range(2), strict=False)
    )
    assert first[0].trial.name != second[0].trial.name
    judged = list(verdicts(first, fleet, known_outcomes))  # what happens once
    run = verdicts(second, fleet, known_outcomes)
    stops = walked(lambda: judged.append(next(run)))
    run.close()
    assert all(one.judged and not one.unexpected for one in judged)
    assert len(stops) <= 40, stops
    assert len({*stops}) <= 15, {*stops}
    assert Counter(stops)["judging/reference.py"] <= 5
    # The measure counts: what it counts on is read on the way.
    assert {"judging/verdict.py", "judging/rounding/analysis.py"} <= {*stops}
