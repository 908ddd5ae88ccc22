"""The asv suite: what it lists and measures, and the ways in which asv misleads."""

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import asv.benchmarks
import asv.config
import asv.util
import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks

from gradwatch.benchmarks.recorded import backends_of
from gradwatch.harness.history import asv_environment, asv_results
from gradwatch.harness.history.asv_environment import environment_with
from gradwatch.harness.history.measure import (
    KEPT,
    Figures,
    MeasurementTarget,
    NotMeasured,
    Point,
    measure,
    sampled,
)
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project import git
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.paths import Busy, alone
from gradwatch.harness.project.requested import by_default
from gradwatch.impls.catalogue import framework_of, load_op, op_names, op_page
from tests.copies import copy_code

ROOT = Path(__file__).parents[2]
CONF = json.loads((ROOT / "asv.conf.json").read_text())
HISTORY = json.loads((ROOT / "asv.history.json").read_text())
DEVICES = ["cpu", "cuda"] if has_cuda() else ["cpu"]


@pytest.fixture(scope="module")
def suite():
    """Every benchmark of the suite, as asv finds them."""
    sys.path.insert(0, str(ROOT))
    try:
        found = {b.name: b for b in disc_benchmarks(str(ROOT / "benchmarks"))}
    finally:
        sys.path.remove(str(ROOT))
    return found


# --- what there is ---------------------------------------------------------------

QUICK = ["time_forward", "time_backward", "track_first_call", "track_peak_memory"]
METRICS = {
    "bench_speed": QUICK,
    "bench_accuracy": ["track_gradient_ratio"],
    "bench_sizes": ["time_forward", "time_backward"],
}


def test_the_suite_has_these_benchmarks_and_no_others(suite):
    expected = {
        f"{module}.{op}.{metric}"
        for module, metrics in METRICS.items()
        for op in op_names()
        for metric in metrics
    }
    assert set(suite) == expected


@pytest.mark.parametrize("op", op_names())
def test_parameters_are_the_page_s_sizes_and_the_devices_and_backends_there_are(
    suite, op
):
    sizes = list(load_op(op).sizes)
    both, backends = ["float32", "float64"], backends_of(load_op(op))
    text = op_page(op).read_text(encoding="utf-8")
    for name in {*by_default()} - {*backends}:  # the page does not have it
        dialect, framework = name.rpartition("_")[2], framework_of(name)
        lacks = f'@op.implement("{dialect}")' not in text
        assert lacks or f'"{framework}"' in text, name
    assert "numpy_graph" in backends
    assert {
        name.split(".")[0]: benchmark._params
        for name, benchmark in suite.items()
        if name.split(".")[1] == op
    } == {
        "bench_speed": [[sizes[len(sizes) // 2]], ["float32"], DEVICES, backends],
        "bench_accuracy": [both, DEVICES, backends],
        "bench_sizes": [sizes, both, DEVICES, backends],
    }


def test_what_asv_would_derive_from_the_source_is_stated(suite):
    stated = {
        name: (b.version, b.timeout is not None, b.param_names[-2:])
        for name, b in suite.items()
    }
    assert set(map(str, stated.values())) == {"('1', True, ['device', 'backend'])"}


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("time_forward", "seconds"),
        ("time_backward", "seconds"),
        ("track_first_call", "seconds"),
        ("track_peak_memory", "bytes"),
        ("track_gradient_ratio", "radii"),
    ],
)
def test_every_figure_has_its_unit(suite, metric, unit):
    found = {b.unit for name, b in suite.items() if name.endswith(metric)}
    assert found == {unit}


# --- what a benchmark gives ------------------------------------------------------


def looked_up(suite, name, figures, point):
    """What asv would record for one combination of a benchmark."""
    benchmark = suite[name]
    benchmark.func.__self__.__dict__.clear()
    combinations = list(itertools.product(*benchmark._params))
    benchmark.set_param_idx(combinations.index(point))
    benchmark.set_cache({("add", *point): figures} if figures else {})
    if benchmark.do_setup():
        return "n/a"
    return benchmark.do_run()


POINT = ("65536", "float32", "cpu", "numpy_manual")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_asv_gets_the_samples_that_were_recorded(suite, phase):
    figures = Figures(forward=[3e-6, 1e-6, 2e-6], backward=[6e-6, 4e-6, 5e-6])
    got = looked_up(suite, f"bench_speed.add.time_{phase}", figures, POINT)
    assert got["number"] == 1
    assert got["samples"] == pytest.approx(getattr(figures, phase), rel=1e-9)


def test_no_time_is_given_where_the_gradient_does_not_agree(suite):
    with pytest.raises(SkipNotImplemented, match="da is wrong"):
        looked_up(
            suite, "bench_speed.add.time_backward", Figures(why="da is wrong"), POINT
        )


def test_a_backend_of_another_environment_is_not_available(suite):
    assert looked_up(suite, "bench_speed.add.time_backward", None, POINT) == "n/a"


def test_how_far_a_wrong_gradient_is_off_is_given_all_the_same(suite):
    figures = Figures(why="da is wrong", ratio=1e8)
    name = "bench_accuracy.add.track_gradient_ratio"
    assert looked_up(suite, name, figures, POINT[1:]) == 1e8


def test_what_cannot_be_known_is_not_given(suite):
    with pytest.raises(SkipNotImplemented, match="too few bytes"):
        looked_up(suite, "bench_speed.add.track_peak_memory", Figures(first=1.0), POINT)


# --- what is measured ------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """A copy of the implementations, such as asv checks out, to be changed."""
    copy_code(tmp_path, ("impls",))
    return tmp_path


PLANTED = """

right = op.said("manual")


def wrong(x, **attributes):
    y, backward = right(x, **attributes)
    return y, lambda dy: tuple({} for dx in backward(dy))


op._said["manual", ""] = wrong
"""


def plant(checkout, op, gradient):
    """Let numpy_manual give another gradient, told in terms of the right one."""
    with (checkout / "impls" / "ops" / f"{op}.py").open("a") as page:
        page.write(PLANTED.format(gradient))


def found(checkout, op, size, dtype="float32", processes=1):
    """Figures of the NumPy backends of one op, by backend."""
    problem = trial(load_op(op), load_op(op).sizes[size], REGIMES["normal"], dtype)
    figures = measure(
        [problem],
        ["numpy_manual", "numpy_graph"],
        ["cpu"],
        MeasurementTarget(checkout, ["numpy"]),
        processes=processes,
        seconds=0.005,
    )
    return {point.backend: f for point, f in figures.items()}


def test_what_agrees_has_all_figures(checkout):
    figures = found(checkout, "layer_norm", "64x1024", processes=2)["numpy_manual"]
    assert figures.why == ""
    assert 0 < figures.ratio < 16
    assert figures.first > 0
    assert figures.peak > 64 * 1024 * 4  # at least the gradient of x
    assert len(figures.forward) == len(figures.backward) <= KEPT
    assert min(figures.forward + figures.backward) > 0


def test_a_wrong_gradient_is_not_timed_and_its_ratio_kept(checkout):
    plant(checkout, "square", "1.001 * dx")
    figures = found(checkout, "square", "1024")
    assert figures["numpy_manual"].forward == []
    assert figures["numpy_manual"].why.startswith("disagree: dx[")
    assert figures["numpy_manual"].ratio > 100
    assert figures["numpy_graph"].forward


def test_a_backward_that_overwrites_its_cotangent_is_not_timed(checkout):
    plant(checkout, "square", "dy.fill(0) or dx")
    figures = found(checkout, "square", "1024")
    assert figures["numpy_manual"].forward == []
    assert figures["numpy_manual"].why.startswith("malformed: dy: overwritten")


def test_a_backward_that_stops_working_while_it_is_timed_has_no_times(checkout):
    plant(checkout, "square", "dx * (next(COUNT) < 20)")
    with (checkout / "impls" / "ops" / "square.py").open("a") as page:
        page.write("\nimport itertools\n\nCOUNT = itertools.count()\n")
    figures = found(checkout, "square", "1024", processes=2)
    assert figures["numpy_manual"].forward == figures["numpy_manual"].backward == []
    assert figures["numpy_manual"].why.startswith("a timed backward is wrong: disagree")
    assert figures["numpy_graph"].forward


def test_who_ends_the_process_while_it_is_timed_costs_what_was_timed_with_it(checkout):
    plant(checkout, "square", "dx if next(COUNT) < 20 else os._exit(3)")
    with (checkout / "impls" / "ops" / "square.py").open("a") as page:
        page.write("\nimport itertools\nimport os\n\nCOUNT = itertools.count()\n")
    figures = found(checkout, "square", "1024", processes=2)
    for one in figures.values():
        assert one.why.startswith("while timing: exited with status 3")
        assert one.forward == one.backward == []


def test_a_narrow_intermediate_shows_in_the_ratio_of_the_wide_type(checkout):
    right = found(checkout, "softmax", "4x1024", "float64", 0)["numpy_manual"]
    plant(checkout, "softmax", "dx.astype('f4').astype('f8')")
    lossy = found(checkout, "softmax", "4x1024", "float64", 0)["numpy_manual"]
    assert lossy.ratio > 1e6 * right.ratio


def test_who_kills_the_process_costs_only_itself(checkout):
    plant(checkout, "square", "__import__('os')._exit(3)")
    figures = found(checkout, "square", "1024")
    assert "exited with status 3" in figures["numpy_manual"].why
    assert figures["numpy_graph"].forward


def test_the_commit_s_implementations_are_run_and_not_the_working_tree_s(checkout):
    plant(checkout, "square", "1 / 0")
    assert "ZeroDivisionError" in found(checkout, "square", "1024")["numpy_manual"].why


PATCHED = """

import torch

old = torch.autograd.grad
torch.autograd.grad = lambda *args, **options: old(*args, **options)
"""


def test_who_replaces_part_of_pytorch_has_no_time_beside_numpy_either(checkout):
    with (checkout / "impls" / "ops" / "square.py").open("a") as page:
        page.write(PATCHED)
    square = load_op("square")
    figures = measure(
        [trial(square, square.sizes["1024"], REGIMES["normal"], "float32")],
        ["numpy_manual", "torch_custom"],
        ["cpu"],
        MeasurementTarget(checkout, ["numpy", "torch"]),
        processes=1,
        seconds=0.005,
    )
    (why,) = {one.why for point, one in figures.items() if point.backend[0] == "t"}
    assert "torch.autograd.grad has been replaced" in why


def test_a_commit_that_lacks_an_op_or_a_framework_has_no_figures_and_no_error(checkout):
    (checkout / "impls" / "ops" / "square.py").unlink()
    for backend in (checkout / "impls" / "backends").glob("autograd_*.py"):
        backend.unlink()
    assert (
        "no op is called 'square'"
        in found(checkout, "square", "1024")["numpy_manual"].why
    )
    dot = load_op("dot")
    (figures,) = measure(
        [trial(dot, next(iter(dot.sizes.values())), REGIMES["normal"], "float32")],
        ["autograd_formula"],
        ["cpu"],
        MeasurementTarget(checkout, ["autograd"]),
        processes=1,
        seconds=0.005,
    ).values()
    assert "no backend is called 'autograd_formula'" in figures.why
    assert figures.forward == []


def test_a_checkout_without_implementations_is_an_error(tmp_path):
    with pytest.raises(NotMeasured, match=r"No such file .*impls/__init__\.py"):
        found(tmp_path, "square", "1024")


def test_a_framework_that_the_environment_promises_and_lacks_is_an_error(checkout):
    door = checkout / "impls" / "backends" / "numpy_manual.py"
    door.write_text("raise ImportError('broken install')\n")
    with pytest.raises(NotMeasured, match="broken install"):
        found(checkout, "square", "1024")


def test_backends_of_other_frameworks_are_passed_over():
    figures = measure(
        [
            trial(
                load_op("square"),
                load_op("square").sizes["1024"],
                REGIMES["normal"],
                "float32",
            )
        ],
        ["numpy_manual", "oneflow_custom"],
        ["cpu"],
        MeasurementTarget(ROOT, ["numpy"]),
        processes=0,
        seconds=0,
    )
    assert list(figures) == [Point("square", "1024", "float32", "cpu", "numpy_manual")]


def test_only_the_ops_that_were_chosen_are_measured(monkeypatch):
    monkeypatch.setenv("ASV_OPS", "square exp2")
    monkeypatch.setenv("ASV_FRAMEWORKS", "numpy")
    monkeypatch.syspath_prepend(str(ROOT))
    from gradwatch.benchmarks import bench_accuracy

    figures = bench_accuracy.setup_cache()
    assert set(figures) == {
        (op, dtype, "cpu", backend)
        for op in ("square", "exp2")
        for dtype in ("float32", "float64")
        for backend in ("numpy_manual", "numpy_graph")
    }
    assert all(0 <= f.ratio < 16 for f in figures.values())


# --- settings --------------------------------------------------------------------


def entries():
    """Python and requirements of each environment of the settings."""
    matrix = {name: values[0] for name, values in CONF["matrix"]["req"].items()}
    main = {"python": CONF["pythons"][0], "req": matrix}
    return [main, *CONF["include"]]


@pytest.mark.parametrize("settings", [CONF, HISTORY], ids=["plain", "history"])
def test_no_setting_is_misspelt(settings):
    # asv passes over a key that it does not know.
    known = {*vars(asv.config.Config()), "version", "default_bench"}
    assert set(settings) <= known


def pinned(name):
    """Exact versions of a file of requirements."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^(\S+)==([\w.]+)", text, re.M))


def test_the_history_has_every_default_framework_in_the_series_of_a_plain_run():
    oneflow, jax, hips = (entry["req"] for entry in HISTORY["include"])
    assert HISTORY["matrix"] == CONF["matrix"]
    assert HISTORY["results_dir"] == CONF["results_dir"]
    assert oneflow == CONF["include"][0]["req"]
    assert jax == {"jax": pinned("jax")["jax"]}
    assert hips == {"autograd": pinned("main")["autograd"]}
    threads = [entry["env_nobuild"] for entry in HISTORY["include"]]
    assert threads == [CONF["include"][0]["env_nobuild"]] * 3
    listed = {*HISTORY["matrix"]["req"], *oneflow, *jax, *hips}
    offered = {framework_of(backend) for backend in by_default()}
    assert listed == offered - {"mlx", "paddle", "tensorflow"}  # made only on request


def test_the_history_is_of_few_ops(suite):
    chosen = {name for name in suite if re.search(HISTORY["default_bench"], name)}
    assert 4 <= len({name.split(".")[1] for name in chosen}) <= 10
    assert {name.split(".")[0] for name in chosen} == {"bench_speed", "bench_accuracy"}


@pytest.mark.parametrize(
    ("case", "dtype", "measured"),
    [
        ("size", "float32", ["jax_jit", "torch_custom"]),
        ("4x5", "float32", ["jax_jit", "torch_custom"]),
        ("4x5", "float16", ["torch_custom"]),
        ("6", "float32", ["torch_custom"]),
    ],
)
def test_jax_is_measured_at_sizes_and_in_first_cases(case, dtype, measured):
    op = load_op("softmax")
    given = op.cases.get(case) or next(iter(op.sizes.values()))
    one = trial(op, given, REGIMES["normal"], dtype)
    assert sampled(one, ["jax_jit", "torch_custom"]) == measured


def test_both_frameworks_are_measured_at_the_versions_that_make_installs():
    main, oneflow = entries()[:2]
    assert main["req"] == {name: pinned("main")[name] for name in main["req"]}
    assert oneflow["req"] == {name: pinned("oneflow")[name] for name in oneflow["req"]}
    assert {*main["req"], *oneflow["req"]} == {"numpy", "torch", "oneflow"}


def test_an_older_numpy_is_measured_under_the_same_python():
    alone = [e for e in entries() if set(e["req"]) == {"numpy"}]
    assert {e["python"] for e in alone} == {CONF["pythons"][0]}
    assert [e["req"]["numpy"] for e in alone] == ["1.26.4"]


def test_every_environment_has_the_same_number_of_threads():
    threads = [e["env_nobuild"] for e in CONF["include"]]
    main = {name: values[0] for name, values in CONF["matrix"]["env_nobuild"].items()}
    assert threads == [main] * len(threads)
    assert set(main.values()) == {"1"}


def test_asv_and_its_runner_are_those_that_the_plug_in_was_written_for():
    text = (ROOT / "requirements" / "main.txt").read_text()
    for package, wanted in asv_environment.PINNED.items():
        assert version(package) == wanted
        assert f"{package.replace('_', '-')}=={wanted}" in text


def test_a_plain_run_measures_the_quick_sets_alone(suite):
    chosen = {name for name in suite if re.search(CONF["default_bench"], name)}
    assert {name.split(".")[0] for name in chosen} == {"bench_speed", "bench_accuracy"}


@pytest.mark.parametrize("name", ["time_forward", "time_backward", "track_first_call"])
def test_a_threshold_is_set_for_each_metric(suite, name):
    full = f"bench_speed.softmax.{name}('64x1024', 'float32')@HEAD"
    rules = CONF["regressions_thresholds"]
    assert len([rule for rule in rules if re.match(rule, full)]) == 1


# --- traps -----------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--quick", "-q"])
def test_a_quick_run_that_would_overwrite_results_is_refused(option):
    with pytest.raises(asv.util.UserError, match="dry-run"):
        asv_environment.refuse_quick(["asv", "run", option])


@pytest.mark.parametrize("option", ["--dry-run", "-n"])
def test_a_quick_run_that_saves_nothing_is_let_be(option):
    asv_environment.refuse_quick(["asv", "run", "--quick", option])
    with pytest.raises(asv.util.UserError):
        asv_environment.refuse_quick(["asv", "run", "--quick"])


def test_a_second_run_in_the_checkout_is_refused(tmp_path, monkeypatch):
    held = contextlib.ExitStack()
    monkeypatch.setattr(asv_environment, "_held", held)
    monkeypatch.setattr(asv_environment, "STATE", tmp_path)
    begin = asv_environment._begin.__wrapped__
    with (
        alone(tmp_path / "lock", "a run"),
        pytest.raises(asv.util.UserError, match="an asv run is going on already"),
    ):
        begin()
    begin()
    with held, pytest.raises(Busy), alone(tmp_path / "lock", "a run"):
        pytest.fail("two runs measure")


def made(root, folder, python, *packages):
    """An environment, as far as it is looked at."""
    site = root / folder / "lib" / f"python{python}" / "site-packages"
    for package in packages:
        (site / f"{package}.dist-info").mkdir(parents=True)
    (root / folder / "bin").mkdir()
    (root / folder / "bin" / "python").touch()


@pytest.mark.parametrize(
    ("python", "wanted", "expected"),
    [
        ("3.11", {"numpy": "2.4.6"}, ".venv"),
        ("3.11", {"numpy": "2.4.6", "torch": "2.13.0"}, ".venv"),
        ("3.10", {"numpy": "1.26.4"}, ".venv-oneflow"),
        ("3.11", {"numpy": "1.26.4"}, None),
        *(("3.11", {"numpy": v}, None) for v in ("2.4", "<3", "2*", "2.4.6+cpu", "")),
    ],
)
def test_an_entry_is_served_by_what_has_exactly_its_versions(
    tmp_path, python, wanted, expected
):
    made(tmp_path, ".venv", "3.11", "numpy-2.4.6", "torch-2.13.0+cpu")
    made(tmp_path, ".venv-oneflow", "3.10", "numpy-1.26.4", "oneflow-0.9.0")
    found = environment_with(python, wanted, tmp_path)
    assert (found and found.name) == expected


# --- all of it -------------------------------------------------------------------


COPIED = ("asv.conf.json", "benchmarks", "gradwatch", "harness", "impls")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of the last commit with this checkout's files, and its environments.

    And with a page that attacks the clock.
    """
    folder = tmp_path_factory.mktemp("clone") / "gradwatch"
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: asv measures commits")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "clone", "-q", ROOT, folder], check=True)
    shutil.rmtree(folder / "results" / "asv", ignore_errors=True)
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy(source, target)
    shutil.copy(ROOT / "tests/timing/attacks/reads_the_stack.py", folder / "impls/ops")
    for environment in ROOT.glob(".venv*"):
        if (environment / "bin" / "python").exists():
            (folder / environment.name).symlink_to(environment)
    subprocess.run(
        [
            *git,
            "add",
            "-A",
            "asv.conf.json",
            "benchmarks",
            "gradwatch",
            "harness",
            "impls",
        ],
        cwd=folder,
        check=True,
    )
    subprocess.run(
        [*git, "commit", "-q", "--allow-empty", "-m", "as it lies here"],
        cwd=folder,
        check=True,
    )
    return folder


def run_asv(clone, *arguments):
    home = {**os.environ, "HOME": str(clone / "home")}
    home.pop("GRADWATCH_MACHINE", None)
    return subprocess.run(
        [sys.executable, "-m", "asv", *arguments],
        cwd=clone,
        env=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def measured(clone):
    """The clone, what asv said of its last commit, and what it measured."""
    bench = r"bench_speed[.](square|reads_the_stack)[.]time_backward"
    done = run_asv(clone, "run", "--show-stderr", "--bench", bench, "HEAD^!")
    assert done.returncode == 0, done.stdout + done.stderr
    series = asv_results.read(clone / "results" / "asv", git.commits(clone), [])
    some = [s for s in series if any(e.value is not None for e in s.entries)]
    return clone, done.stdout + done.stderr, some


@pytest.mark.slow
@pytest.mark.timeout(900)  # a dozen processes that import a framework, beside others
def test_a_run_in_a_fresh_clone_measures_both_frameworks_and_is_published(measured):
    if not (ROOT / ".venv-oneflow" / "bin" / "python").exists():
        pytest.skip("OneFlow's environment is not there")
    clone, _, series = measured
    timed = {
        s.parameters["backend"]
        for s in series
        if s.op == "square" and s.metric == "time_backward"
    }
    matrix = [CONF["matrix"]["req"], *(entry["req"] for entry in CONF["include"])]
    versions = {name for req in matrix for name in req}  # JAX compiles too long
    assert timed == {b for b in by_default() if framework_of(b) in versions}
    pages = run_asv(clone, "publish")
    assert pages.returncode == 0, pages.stdout
    listed = json.loads((clone / ".asv" / "html" / "index.json").read_text())
    assert "bench_speed.square.time_backward" in listed["benchmarks"]
    ops = {name.split(".")[1] for name in listed["benchmarks"]}
    assert ops == {*op_names(), "reads_the_stack"}
    assert not (clone / "home").exists()  # nothing is written outside the checkout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_attack_in_a_commit_has_no_time_and_those_beside_it_have(measured):
    _, told, series = measured
    assert "looks at its callers while it is timed" in told
    timed = {s.parameters["backend"] for s in series if s.op == "reads_the_stack"}
    assert "torch_custom" not in timed
    assert {"torch_autograd", "torch_formula", "numpy_graph"} <= timed


def test_a_kill_while_asv_writes_leaves_the_old_file(tmp_path, monkeypatch):
    monkeypatch.setattr(asv.util, "write_json", asv.util.write_json)
    asv_environment.replace_whole_files()
    file = tmp_path / "machine" / "results.json"
    asv.util.write_json(str(file), {"n": 1}, 2)
    with pytest.raises(TypeError):
        asv.util.write_json(str(file), {"n": 2, "m": object()}, 2)
    assert json.loads(file.read_text()) == {"n": 1, "version": 2}


# --- the list of benchmarks ------------------------------------------------------


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Saves a list of benchmarks as a run with these arguments does; what is there."""
    monkeypatch.setattr(asv.benchmarks.Benchmarks, "save", None)
    monkeypatch.setattr(sys, "argv", ["asv", "run"])
    asv_environment.keep_listed()
    conf = SimpleNamespace(results_dir=str(tmp_path), benchmark_dir="")
    file = tmp_path / "benchmarks.json"

    def saved(*arguments, **backends):
        monkeypatch.setattr(sys, "argv", ["asv", "run", *arguments])
        found = [
            {"name": name, "param_names": ["backend"], "params": [several]}
            for name, several in backends.items()
        ]
        asv.benchmarks.Benchmarks(conf, found).save()
        return json.loads(file.read_text()) if file.exists() else None

    return saved


def test_a_run_that_measures_less_takes_nothing_from_the_list_of_benchmarks(listed):
    whole = listed(dot=["numpy", "torch"], exp=["jax"])
    assert listed(dot=["torch"]) == whole
    more = listed(dot=["torch", "oneflow"])
    assert more["dot"]["params"] == [["numpy", "torch", "oneflow"]]
    assert more["exp"] == whole["exp"]


def test_a_dry_run_writes_no_list_of_benchmarks(listed):
    assert listed("--dry-run", dot=["torch"]) is None
    assert listed(dot=["torch"]) == listed("-n", dot=["jax"])


def test_what_the_list_of_benchmarks_was_is_replaced_where_it_cannot_be_read(
    listed, tmp_path
):
    (tmp_path / "benchmarks.json").write_text("{")
    assert {*listed(dot=["torch"])} == {"dot", "version"}


def test_the_recorded_list_of_benchmarks_is_that_of_the_suite(suite):
    """So a run in a clean checkout leaves it as it is."""
    listed = json.loads((ROOT / "results" / "asv" / "benchmarks.json").read_text())
    for name, benchmark in suite.items():
        assert listed[name]["code"] == benchmark.code, f"{name}: {AGAIN}"
        pairs = zip(listed[name]["params"], benchmark._params, strict=True)
        for there, own in pairs:
            lacking = {*map(repr, own)} - {*there} - {"'cuda'"}
            assert not lacking, f"{name}: {AGAIN}"


AGAIN = "asv run --bench just-discover 'HEAD^!' writes it"
