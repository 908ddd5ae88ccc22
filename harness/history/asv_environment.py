"""asv plug-in: measures in the environments that `make` made, one run at a time.

asv.conf.json names this module. Each entry of asv's matrix is served by the environment
of the checkout that has exactly its versions; if there is none, it is left out with a
warning. Nothing is installed for a commit: `measure` runs the `impls` of asv's
checkout. This replaces parts of one version of asv; any other is refused.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import os
import platform
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import asv.benchmarks
import asv.console
import asv.environment
import asv.machine
import asv.util
import asv_runner
import asv_runner.run

from gradwatch.harness.console.streams import ticking
from gradwatch.harness.history.measure import unrunnable
from gradwatch.harness.project import git, machines
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import PROJECT, ROOT, SOURCE, Busy, alone
from gradwatch.harness.workers.lifetime import first_line
from gradwatch.impls.catalogue import backend_names, framework_of, op_names

PINNED = {"asv": "0.6.6", "asv_runner": "0.3.2"}
STATE = ROOT / ".asv"

#: Code that comes from the working tree, whichever commit asv measures. From an op's
#: page, the working tree gives the sizes, and the commit gives the computation.
INSTRUMENT = tuple(name for name in PROJECT.instrument if name != "requirements")

#: In another project asv.conf.json names this folder, whose files import our
#: benchmarks: asv discovers nothing outside the project.
BENCHMARKS = STATE / "gradwatch_benchmarks"


def setup() -> None:
    """Check the call and replace parts of asv; asv calls this after the import.

    Raises:
        asv.util.UserError: Another version of asv, or a call that would spoil results.
    """
    for package, wanted in PINNED.items():
        if (found := importlib.metadata.version(package)) != wanted:
            raise asv.util.UserError(
                f"{package} {found} is installed, but the history needs"
                f" {wanted}: run `make`"
            )
    refuse_quick(sys.argv)
    if PROJECT.table:
        replace_file(BENCHMARKS / "__init__.py", "")
        for file in (SOURCE / "benchmarks").glob("bench_*.py"):
            starred = f"from gradwatch.benchmarks.{file.stem} import *\n"
            replace_file(BENCHMARKS / file.name, starred)
    replace_whole_files()
    keep_listed()
    try:
        name = machines.machine_name()
    except machines.OtherMachine as error:
        raise asv.util.UserError(str(error)) from None
    # asv reads the machine's description from this file, not from the user's home.
    file = STATE / "machine.json"
    asv.machine.MachineCollection.get_machine_file_path = lambda: str(file)
    asv.machine.Machine.hardcoded_machine_name = name
    STATE.mkdir(exist_ok=True)
    asv.machine.MachineCollection.save(name, {**machines.traits(), "machine": name})
    _choose_by_default()


def keep_listed() -> None:
    """Keep the names and parameters of earlier runs in asv's list of benchmarks.

    It has the names and units of all figures, also of other machines, settings and
    commits. A dry run does not change it.
    """

    def save(self: Any) -> None:
        if _is_dry(sys.argv):
            return
        file = self.get_benchmark_file_path(self._conf.results_dir)
        listed = dict[str, Any]()
        with contextlib.suppress(OSError, asv.util.UserError):
            listed |= asv.util.load_json(file, self.api_version)
        for name, new in self._all_benchmarks.items():
            before = listed.get(name, new)
            if before["param_names"] == new["param_names"]:
                pairs = zip(before["params"], new["params"], strict=True)
                new = {**new, "params": [[*dict.fromkeys(a + b)] for a, b in pairs]}
            listed[name] = new
        asv.util.write_json(file, listed, self.api_version)

    asv.benchmarks.Benchmarks.save = save


def replace_whole_files() -> None:
    """Let asv replace its files as a whole, so that a kill cannot damage one."""
    write = asv.util.write_json

    def replace(path: str, data: Any, *options: Any, **named: Any) -> None:
        part = Path(path).with_name(f".{Path(path).name}.part")
        write(part, data, *options, **named)
        os.replace(part, path)

    asv.util.write_json = replace


def refuse_quick(arguments: Sequence[str]) -> None:
    """Refuse --quick: asv says that it saves nothing, but it overwrites good results.

    Raises:
        asv.util.UserError: --quick without --dry-run.
    """
    if {"--quick", "-q"} & {*arguments} and not _is_dry(arguments):
        raise asv.util.UserError(
            "--quick would overwrite recorded results: add --dry-run"
        )


def _is_dry(arguments: Sequence[str]) -> bool:
    return not {"--dry-run", "-n"}.isdisjoint(arguments)


def _choose_by_default() -> None:
    """Let a plain `asv run` measure conf.default_bench; asv has no such setting.

    The chosen ops are passed on, so that setup_cache measures no others.
    """
    discover = asv.benchmarks.Benchmarks.discover.__func__

    def chosen(
        cls: Any, conf: Any, *place: Any, regex: Any = None, check: bool = False
    ) -> Any:
        failed = unrunnable(op_names())
        for op, why in failed.items():
            asv.console.log.warning(f"{op} is left out: {why}")
        os.environ["ASV_LEFT_OUT"] = " ".join(failed)
        os.environ["ASV_OFFERED"] = " ".join(offered(conf))
        if isinstance(regex, str):
            regex = [regex]
        regex = [
            rf"^bench_(speed|accuracy)[.]{one}[.]" if one in op_names() else one
            for one in regex or [getattr(conf, "default_bench", "")]
        ]
        benchmarks = discover(cls, conf, *place, regex=regex, check=check)
        ops = {name.split(".")[1] for name in benchmarks}
        os.environ["ASV_OPS"] = " ".join(sorted(ops))
        return benchmarks

    asv.benchmarks.Benchmarks.discover = classmethod(chosen)


def offered(conf: Any) -> set[str]:
    """The packages that some environment of a configuration has; NumPy is in each."""
    entries = (conf.matrix, *conf.include)
    return {"numpy"}.union(*(one.get("req", {}) for one in entries))


@functools.cache
def _begin() -> None:
    """Lock out other runs, and warn if benchmarks or harness differ; once in a run."""
    # Two runs in one checkout would measure each other's commit.
    try:
        _held.enter_context(alone(STATE / "lock", "an asv run"))
    except Busy as why:
        raise asv.util.UserError(str(why)) from None
    if git.changed_files(ROOT, INSTRUMENT):
        asv.console.log.warning(
            "benchmarks or harness differ from their commit: these figures are measured"
            " by other code than the history shows"
        )


_held = contextlib.ExitStack()  # closed when this process ends, in any way


def environment_with(
    python: str, wanted: Mapping[str, str], root: Path = ROOT
) -> Path | None:
    """The environment of the checkout with this Python and exactly these versions.

    2.13.0+cpu is a build of 2.13.0.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        has = {n: importlib.metadata.version(n).partition("+")[0] for n in wanted}
        alike = platform.python_version().startswith(f"{python}.") and has == wanted
        if PROJECT.table and alike:  # the running one: a project's may be anywhere
            return Path(sys.prefix)
    for site in sorted(root.glob(f".venv*/lib/python{python}/site-packages")):
        exact = all(
            f"{name}-{version}"
            in (one.stem.partition("+")[0] for one in site.glob(f"{name}-*.dist-info"))
            for name, version in wanted.items()
        )
        if exact and (site.parents[2] / "bin" / "python").exists():
            return site.parents[2]
    return None


class Prebuilt(asv.environment.Environment):  # type: ignore[misc]  # asv has no types
    """The environment of the checkout with exactly the versions of a matrix entry."""

    tool_name = "prebuilt"
    matches_python_fallback = False

    def __init__(
        self,
        conf: Any,
        python: str,
        requirements: dict[str, str],
        tagged_env_vars: Mapping[tuple[str, str], str],
    ) -> None:
        wanted = {n: v for n, v in requirements.items() if not n.startswith("pip+")}
        folder = environment_with(python, wanted, ROOT)
        if folder is None:
            packages = " ".join(f"{name}=={v}" for name, v in wanted.items())
            make = f"pip install {packages}" if PROJECT.table else "make environments"
            raise asv.environment.EnvironmentUnavailable(
                f"no environment of Python {python} with exactly {packages};"
                f" to measure it too: {make}, or change the matrix in asv.conf.json"
            )
        self._python, self._requirements = python, requirements  # for self.name
        super().__init__(conf, python, requirements, tagged_env_vars)
        frameworks = {framework_of(backend) for backend in backend_names()}
        named = sorted(frameworks & {*self._requirements})
        self._global_env_vars["ASV_PYTHON"] = str(folder / "bin" / "python")
        self._global_env_vars["ASV_FRAMEWORKS"] = " ".join(named)

    @property
    def name(self) -> str:
        """The versions and the number of threads; all other variables depend on it."""
        variables = self._tagged_env_vars.items()
        threads = {key: v for key, v in variables if key[1] == "OMP_NUM_THREADS"}
        parts = (self.tool_name, self._python, self._requirements, threads)
        return str(asv.environment.get_env_name(*parts))

    def _setup(self) -> None:
        """Make only the folder: nothing is installed."""
        os.makedirs(self._path)

    def create(self) -> None:
        """Make the folder, and keep other runs out of it."""
        _begin()
        super().create()

    def find_executable(self, executable: str) -> str:
        """The Python that runs asv: its scripts start the one to measure in.

        asv also looks for pip.
        """
        return sys.executable

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Check the commit out; return the folder even if it was there already."""
        super().install_project(conf, repo, commit_hash)
        self._set_build_dirs(self._build_root, None)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        """Run a script of asv, in a process that ends with this one.

        A benchmark, which only looks its figure up, runs in this process.
        """
        if args[1:2] == ["run"] and args[5] == "None":  # no profile is requested
            return _looked_up(args[2:], kwargs["cwd"])
        # Run the script that the first argument names as Python would.
        script = (
            f"{first_line()}import runpy\nsys.argv[:] = sys.argv[1:]\n"
            "sys.path[0] = os.path.dirname(sys.argv[0])\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        # asv has begun a line, which stays on a terminal.
        with ticking(lambda: "measuring", before="\n", terminal=False):
            return self.run_executable("python", ["-c", script, *args], **kwargs)


def _looked_up(args: Sequence[str], folder: str) -> tuple[str, str, int]:
    """Run a benchmark here; its own process would take a hundred times longer."""
    printed, code, before = io.StringIO(), 0, os.getcwd()
    os.chdir(folder)  # where asv stores the result of setup_cache
    try:
        with contextlib.redirect_stdout(printed):
            asv_runner.run._run(tuple(args))
    except Exception:  # noqa: BLE001  # a benchmark that fails is asv's to report
        printed.write(traceback.format_exc())
        code = 1
    finally:
        os.chdir(before)
    return printed.getvalue(), "", code
