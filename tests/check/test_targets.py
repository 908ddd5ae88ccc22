"""Ten problems in KernelBench's form; each wrong solution has the right forward."""

from pathlib import Path

import pytest
import torch

from gradwatch.harness.check.child import kernelbench, target
from gradwatch.harness.check.entry import Session
from gradwatch.harness.check.script import origin

HERE = Path(__file__).parent / "kernelbench"
PROBLEMS = sorted(path.stem for path in (HERE / "problems").glob("*.py"))


def pair(problem, kind):
    return kernelbench(
        HERE / "problems" / f"{problem}.py", HERE / kind / f"{problem}.py"
    )


def report(problem, kind):
    reference, load, inputs, source = pair(problem, kind)
    session = Session(reference, load(), source=source)
    return session.run(inputs={"seed 0": inputs(0)}, dtypes=["float32"])


def test_there_are_ten():
    assert len(PROBLEMS) >= 10


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_right_solution_passes(problem):
    found = report(problem, "right")
    assert found.passes, str(found)


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_wrong_solution_fails_by_its_gradients_alone(problem):
    found = report(problem, "wrong")
    assert not found.passes
    assert all(row.judgement.tensor.startswith("d") for row in found.failures)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_comparison_of_forwards_as_kernelbench_makes_it_sees_nothing(problem):
    reference, load, inputs, _ = pair(problem, "wrong")
    candidate = load()
    state = list(reference.state_dict().values())
    names = list(candidate.state_dict())
    candidate.load_state_dict(dict(zip(names, state, strict=True)))
    args = inputs(0)
    with torch.no_grad():
        got, expected = candidate(*args), reference(*args)
    assert torch.allclose(got, expected, atol=1e-4, rtol=1e-4)  # KernelBench's, float32


def test_a_script_imports_from_a_file_and_has_what_else_stands_there(tmp_path):
    file = tmp_path / "half_of_it.py"
    file.write_text("HALF = 0.5\n\n\ndef halved(x):\n    return HALF * x\n")
    assert origin(target(f"{file}:halved")).splitlines() == [
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "from half_of_it import halved",
        "candidate = halved",
    ]
