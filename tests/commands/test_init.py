"""What `gradwatch init` writes: whole, about the function named, and over nothing."""

import importlib.metadata
import json
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from gradwatch import judge
from gradwatch.harness.commands import init as starting
from gradwatch.harness.project.paths import find
from gradwatch.impls.catalogue import load_op

KERNEL = '''
class FastSilu:
    """Of the form of an autograd.Function, without the framework."""

    @staticmethod
    def forward(ctx, x):
        """The swish of each element."""
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

def scaled(x, weight, /, eps=1.0):
    return x * weight * eps

NUMBER = 3
'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A folder with a module of somebody's, imported as a fresh one."""
    name = f"kernels_{tmp_path.name.replace('-', '_')}"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / f"{name}.py").write_text(KERNEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path, name


def test_the_example_is_a_page_that_judges(tmp_path):
    written = dict(starting.write(starting.example(), tmp_path))
    assert set(written.values()) == {"written"}
    op = load_op(str(tmp_path / "gradwatch_ops" / "silu.py"))
    (dx,) = judge(op, [[1.0, -2.0]], [1.0, 1.0], [[0.927670511, -0.090784246]])
    assert dx.verdict == "disagree"  # nine digits are too few for float64
    (dx,) = judge(op, [[0.0, 0.0]], [1.0, 2.0], [[0.5, 1.0]])
    assert dx.verdict == "agree"


def test_the_table_and_the_history_s_settings_can_be_read(tmp_path):
    dict(starting.write(starting.example(), tmp_path))
    assert find(tmp_path, {}).ops == ("gradwatch_ops",)
    assert find(tmp_path, {}).problem == ""
    conf = json.loads((tmp_path / "asv.conf.json").read_text())
    assert conf["plugins"] == [".gradwatch.asv_plugin"]


@pytest.mark.parametrize(
    ("told", "source"),
    [
        (
            '{"url": "https://a.example/g", "vcs_info": {"commit_id": "1f"}}',
            "git+https://a.example/g@1f",
        ),
        ('{"url": "file:///here", "dir_info": {}}', "git+URL"),
        (None, "git+URL"),
    ],
    ids=["git", "folder", "unknown"],
)
def test_the_workflow_installs_gradwatch_from_where_it_came_and_by_no_bare_name(
    tmp_path, monkeypatch, told, source
):
    installed = SimpleNamespace(read_text=lambda name: told, version="0.1")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    dict(starting.write(starting.example(), tmp_path))
    workflow = (tmp_path / ".github" / "workflows" / "gradients.yml").read_text()
    assert f'install "gradwatch[all] @ {source}"' in workflow


def test_nothing_is_overwritten_and_a_second_call_changes_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (tmp_path / "asv.conf.json").write_text("{}")
    first = dict(starting.write(starting.example(), tmp_path))
    assert first["asv.conf.json"] == "kept"
    assert first["pyproject.toml"] == "added to"
    before = {f: f.read_text() for f in tmp_path.rglob("*") if f.is_file()}
    assert before[tmp_path / "asv.conf.json"] == "{}"
    assert before[tmp_path / "pyproject.toml"].startswith(
        "[project]\nname = 'theirs'\n"
    )
    assert set(dict(starting.write(starting.example(), tmp_path)).values()) == {"kept"}
    assert {f: f.read_text() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_a_page_about_a_kernel_takes_its_formula_from_the_kernel_s_text(theirs):
    root, module = theirs
    about = starting.subject(f"{module}:FastSilu", root)
    assert (about.name, about.inputs, about.call) == (
        "fast_silu",
        ("x",),
        "FastSilu.apply",
    )
    assert about.measures == f"src/{module}.py"
    dict(starting.write(about, root))
    op = load_op(str(root / "gradwatch_ops" / "fast_silu.py"))
    (dx,) = judge(op, [[0.0]], [1.0], [[0.5]])
    assert dx.verdict == "agree"
    (dx,) = judge(op, [[0.0]], [1.0], [[0.25]])
    assert dx.verdict == "disagree"


def test_parameters_with_a_default_are_no_inputs(theirs):
    root, module = theirs
    assert starting.subject(f"{module}:scaled", root).inputs == ("x", "weight")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{}:Missing", "has no Missing"),
        ("{}:NUMBER", "cannot be called"),
        ("no_such_module_at_all:f", "cannot be imported"),
        ("{}", "module:name"),
    ],
)
def test_what_cannot_be_judged_is_one_line(theirs, name, said):
    root, module = theirs
    with pytest.raises(click.UsageError, match=said):
        starting.subject(name.format(module), root)


def test_constants_helpers_and_imports_of_the_module_come_along(theirs):
    root, module = theirs
    file = root / "src" / f"{module}.py"
    file.write_text(f"""{KERNEL}
import math
import torch.nn.functional as F
from math import sqrt

C = 2 / sqrt(math.pi)

def _inner(x, factor=1.0):
    import torch
    return C * factor * F.sigmoid(x)

def centred(x, weight, eps=1e-5):
    scaled = _inner(x) * weight / math.exp(0) + eps
    return scaled - torch.mean(scaled, dim=-1, keepdim=True)
""")
    about = starting.subject(f"{module}:centred", root)
    dict(starting.write(about, root))
    assert about.inputs == ("x", "weight")
    assert starting.trouble(about, root) == ""
    text = (root / "gradwatch_ops" / "centred.py").read_text()
    assert "torch" not in text.partition("def formula")[2].partition("@op")[0]


@pytest.mark.parametrize(
    "call", ["softplus(x)", "gelu(2 * x)", "relu(x - 1)", "neg(x)"]
)
def test_what_the_formula_s_language_lacks_is_written_in_its_terms(theirs, call):
    root, module = theirs
    source = f"import torch\n\ndef fused(x):\n    return x * torch.{call}\n"
    (root / "src" / f"{module}.py").write_text(source)
    about = starting.subject(f"{module}:fused", root)
    dict(starting.write(about, root))
    assert starting.trouble(about, root) == ""


@pytest.mark.parametrize("call", ["conv2d(x)", "cat(x)", "exp(x)"])
def test_what_a_hint_does_not_say_in_terms_of_its_one_argument_stays(theirs, call):
    root, module = theirs
    source = f"import torch\n\ndef fused(x):\n    return torch.{call}\n"
    (root / "src" / f"{module}.py").write_text(source)
    formula = starting.subject(f"{module}:fused", root).formula
    assert f"xp.{call}" in formula


def test_a_call_that_says_more_than_its_hint_is_named_with_its_line(theirs):
    root, module = theirs
    source = "import torch\n\ndef fused(x):\n    return torch.gelu(x, 'tanh')\n"
    (root / "src" / f"{module}.py").write_text(source)
    about = starting.subject(f"{module}:fused", root)
    dict(starting.write(about, root))
    assert "gelu() takes 1 positional argument" in starting.trouble(about, root)


def test_after_the_first_verdict_stands_what_comes_next(tmp_path, monkeypatch):
    calls = []
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(
        starting.subprocess, "run", lambda call, **_: calls.append(call) or ended
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(starting.command, [], standalone_mode=False)
    assert done.return_value == 0
    (call,) = calls
    assert call[call.index("--op") + 1] == "silu"
    following = "pytest; git add . && git commit; asv run 'HEAD^!'"
    assert call[call.index("--next") + 1] == following


def test_of_several_kernels_each_file_is_listed_once_and_what_runs_is_judged(
    theirs, monkeypatch
):
    root, module = theirs
    file = root / "src" / f"{module}.py"
    file.write_text(f"{KERNEL}\ndef odd(x):\n    return torch.no_such_name(x)\n")
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    calls = []
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(
        starting.subprocess, "run", lambda call, **_: calls.append(call) or ended
    )
    named = [f"{module}:{name}" for name in ("scaled", "odd")]
    done = CliRunner().invoke(starting.command, named, standalone_mode=False)
    listed = [line.split() for line in done.stdout.splitlines() if "  " in line]
    assert len(listed) == len({name for *_, name in listed}) == 10
    assert not any(how == "kept" for how, *_ in listed)
    (call,) = calls
    assert call[call.index("--op") + 1] == "scaled"
    assert done.return_value == 1


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        ("x * weight + bias", "x=(3, 8), weight=(3, 8), bias=(3, 8)"),
        ("x @ weight.T + bias.expand(8)", "x=(3, 8), weight=(8, 8), bias=(8,)"),
        ("nowhere", "x=(3, 8), weight=(3, 8), bias=(3, 8)"),
    ],
    ids=["equal", "linear", "never"],
)
def test_the_page_has_shapes_at_which_their_code_runs(theirs, body, shapes):
    root, module = theirs
    source = f"import torch\n\ndef fused(x, weight, bias):\n    return {body}\n"
    (root / "src" / f"{module}.py").write_text(source)
    dict(starting.write(starting.subject(f"{module}:fused", root), root))
    page = (root / "gradwatch_ops" / "fused.py").read_text()
    assert f'Case("3x8", {shapes})' in page


def test_the_benchmark_of_a_kernel_can_be_read_and_names_it(theirs):
    root, module = theirs
    about = starting.subject(f"{module}:scaled", root)
    written = dict(starting.write(about, root))
    assert written["test_speed_of_scaled.py"] == "written"
    text = (root / "test_speed_of_scaled.py").read_text()
    compile(text, "speed", "exec")
    assert f"from {module} import scaled" in text
    assert "[(64, 1000), (64, 1000)]" in text  # x and weight
    assert "$" not in text


def test_a_module_without_a_name_is_answered_with_its_kernels(tmp_path):
    function = "import torch\n\nclass Fast(torch.autograd.Function):\n    pass\n"
    (tmp_path / "one.py").write_text(function)
    with pytest.raises(click.UsageError, match="one:Fast"):
        starting.subject("one", tmp_path)


def test_a_formula_that_cannot_be_run_names_its_file_and_line(theirs):
    root, module = theirs
    file = root / "src" / f"{module}.py"
    file.write_text(f"{KERNEL}\ndef odd(x):\n    return torch.no_such_name(x)\n")
    about = starting.subject(f"{module}:odd", root)
    dict(starting.write(about, root))
    why = starting.trouble(about, root)
    line = int(why.partition(":")[2].partition(":")[0])
    page = (root / "gradwatch_ops" / "odd.py").read_text().splitlines()
    assert "no_such_name" in page[line - 1]
    assert "no_such_name" in why
    assert "write there what odd computes" in why


def test_every_kernel_of_a_repository_is_offered(tmp_path):
    two = "import torch\n\nclass {}(torch.autograd.Function):\n    pass\n"
    (tmp_path / "one.py").write_text(two.format("A"))
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "two.py").write_text(two.format("B"))
    assert starting.kernels(tmp_path) == ["one:A", "deep.two:B"]


def test_a_constant_of_the_module_comes_along(theirs):
    """The page is read without the module, so the formula would lack it."""
    root, module = theirs
    file = root / "src" / f"{module}.py"
    file.write_text(f"{KERNEL}SCALE = 0.5\n\ndef halved(x):\n    return x * SCALE\n")
    written = dict(starting.write(starting.subject(f"{module}:halved", root), root))
    assert written["gradwatch_ops/halved.py"] == "written"
    op = load_op(str(root / "gradwatch_ops" / "halved.py"))
    (dx,) = judge(op, [[1.0, -2.0]], [1.0, 1.0], [[0.5, 0.5]])
    assert dx.verdict == "agree"
