"""asv's plug-in: it measures in environments that are there already, one run at a time.

asv.conf.json names this module. asv then measures in the environments of the checkout
(.venv, .venv-oneflow and others of that kind) instead of making its own: a run after
`make` fetches nothing, starts at once, and needs no index, no conda and no version
manager, whose shims would end the run. A matrix entry is served by the environment that
has exactly its versions; one that none has is left out with a warning that names the
command. Nothing is installed for a commit: `harness.history.measure` runs the `impls`
of asv's checkout. Names of results hold versions, never a path.

Written against asv 0.6.6, parts of which are replaced here; another version is refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asv.benchmarks
import asv.console
import asv.environment
import asv.machine
import asv.util
import asv_runner
import asv_runner.run

from harness.history import asv_results
from harness.history.environments import WrongCall, command_for, environment_with
from harness.project import git
from harness.project.documents import replace_file
from harness.project.lock import Busy, alone
from harness.project.paths import PREFIX, PROJECT, ROOT, SOURCE
from impls.catalogue import backend_names, framework_of

PINNED = {"asv": "0.6.6", "asv_runner": "0.3.2"}
STATE = ROOT / ".asv"

#: What asv takes from the working tree, whatever commit it measures. Of the pages only
#: their sizes are; what a page computes is taken from the commit.
INSTRUMENT = ("benchmarks", "harness", "asv.conf.json")

#: In a project of others asv.conf.json names this folder, which holds our benchmarks by
#: reference: asv discovers nothing outside the project.
BENCHMARKS = STATE / "gradwatch_benchmarks"


def setup() -> None:
    """What asv calls when it has imported this module: check and replace.

    Raises:
        asv.util.UserError: Another version of asv, a call that would spoil results.
    """
    for package, wanted in PINNED.items():
        if version(package) != wanted:
            raise asv.util.UserError(
                f"{package} {version(package)} is installed, the history is kept with"
                f" {wanted}: run `make`"
            )
    refuse_quick(sys.argv)
    if PROJECT.table:
        _refer_to_benchmarks()
    _name_machine()
    _choose_by_default()


def _refer_to_benchmarks() -> None:
    BENCHMARKS.mkdir(parents=True, exist_ok=True)
    package = f"{PREFIX}benchmarks"
    for file in (SOURCE / "benchmarks").glob("*.py"):
        starred = file.stem.startswith("bench_")
        line = f"from {package}.{file.stem} import *\n" if starred else ""
        if starred or file.stem == "__init__":
            replace_file(BENCHMARKS / file.name, line)


def refuse_quick(arguments: Sequence[str]) -> None:
    """asv says that --quick saves nothing; it overwrites good results.

    Raises:
        asv.util.UserError: --quick without --dry-run.
    """
    quick = {"--quick", "-q"} & {*arguments}
    if quick and not {"--dry-run", "-n"} & {*arguments}:
        raise asv.util.UserError(
            "--quick would overwrite recorded results: add --dry-run"
        )


def _name_machine() -> None:
    """Answer asv's questions about the machine; keep them here, not in the home."""
    traits = _traits()
    try:
        traits["machine"] = asv_results.machine_for(ROOT / "results" / "asv", traits)
    except asv_results.OtherMachine as error:
        raise asv.util.UserError(str(error)) from None
    file = STATE / "machine.json"
    asv.machine.MachineCollection.get_machine_file_path = lambda: str(file)
    asv.machine.Machine.hardcoded_machine_name = traits["machine"]
    STATE.mkdir(exist_ok=True)
    asv.machine.MachineCollection.save(traits["machine"], traits)


def _traits() -> dict[str, str]:
    """As asv tells them, but for what would change in one machine and part a series."""
    traits: dict[str, str] = asv.machine.Machine.get_defaults()
    traits["os"] = platform.system()
    traits["ram"] = f"{round(int(traits['ram']) / 2**30)} GiB"
    return traits


def _choose_by_default() -> None:
    """A plain `asv run` measures conf.default_bench, for asv knows no such setting.

    What is chosen is passed on, so that setup_cache measures no other ops.
    """
    discover = asv.benchmarks.Benchmarks.discover.__func__

    def chosen(
        cls: Any,
        conf: Any,
        repo: Any,
        environments: Any,
        commit_hash: Any,
        regex: Any = None,
        check: bool = False,
    ) -> Any:
        regex = regex or getattr(conf, "default_bench", None)
        found = discover(cls, conf, repo, environments, commit_hash, regex, check)
        os.environ["ASV_OPS"] = " ".join(sorted({name.split(".")[1] for name in found}))
        return found

    asv.benchmarks.Benchmarks.discover = classmethod(chosen)


@functools.cache
def _begin() -> None:
    """Once in a run: keep others out, and say so if what measures is not committed."""
    lock(STATE / "lock")
    if git.changed_files(ROOT, INSTRUMENT):
        asv.console.log.warning(
            "benchmarks or harness differ from their commit: what measures is not"
            " what is in the history"
        )


_held = contextlib.ExitStack()  # closed when this process ends, however it ends


def lock(file: Path) -> None:
    """Keep other runs out: two that share a checkout measure each other's commit.

    Raises:
        asv.util.UserError: Another process holds it.
    """
    try:
        _held.enter_context(alone(file, "an asv run"))
    except Busy:
        raise asv.util.UserError(
            "another asv run is measuring in this checkout; two at once would measure"
            " each other's commits"
        ) from None


class Prebuilt(asv.environment.Environment):  # type: ignore[misc]  # asv has no types
    """An environment of the checkout that has exactly the versions of an entry."""

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
        try:
            found = environment_with(python, wanted, ROOT)
        except WrongCall as error:
            raise asv.util.UserError(f"asv.conf.json: {error}") from None
        if found is None:
            raise asv.environment.EnvironmentUnavailable(
                f"no environment of Python {python} with exactly"
                f" {', '.join(f'{n} {v}' for n, v in wanted.items())};"
                f" to measure it too: {command_for(python, wanted)}"
            )
        self._executable = found / "bin" / "python"
        self._python, self._requirements = python, requirements  # for self.name
        super().__init__(conf, python, requirements, tagged_env_vars)
        frameworks = {framework_of(backend) for backend in backend_names()}
        self._global_env_vars["ASV_FRAMEWORKS"] = " ".join(
            sorted(frameworks & {*self._requirements})
        )

    @property
    def name(self) -> str:
        """Versions and the number of threads: other variables follow from that one."""
        threads = {
            (tag, key): value
            for (tag, key), value in self._tagged_env_vars.items()
            if key == "OMP_NUM_THREADS"
        }
        named: str = asv.environment.get_env_name(
            self.tool_name, self._python, self._requirements, threads
        )
        return named

    def _setup(self) -> None:
        """Only the folder: nothing is to be installed."""
        os.makedirs(self._path)

    def create(self) -> None:
        """Make the folder, and keep other runs out of it."""
        _begin()
        super().create()

    def find_executable(self, executable: str) -> str:
        """The one program that is needed; asv also looks whether there is a pip."""
        return str(self._executable)

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        """Check the commit out, and say where even if it was there already."""
        super().install_project(conf, repo, commit_hash)
        self._set_build_dirs(self._build_root, None)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        """Run a script of asv; a benchmark, which only looks up, in this process."""
        if args[1:2] == ["run"] and args[5] == "None":  # no profile is asked for
            return _looked_up(args[2:], kwargs["cwd"])
        environ = dict(kwargs.pop("env", os.environ))
        environ["ASV_PYTHONPATH"] = str(_lent_runner())
        return self.run_executable("python", args, env=environ, **kwargs)


def _looked_up(args: Sequence[str], folder: str) -> tuple[str, str, int]:
    """What asv would get of a process of its own, at a hundredth of the time."""
    told, code, before = io.StringIO(), 0, os.getcwd()
    os.chdir(folder)  # where asv keeps what setup_cache returned
    try:
        with contextlib.redirect_stdout(told):
            asv_runner.run._run(tuple(args))
    except Exception:  # noqa: BLE001  # a benchmark that fails is asv's to report
        told.write(traceback.format_exc())
        code = 1
    finally:
        os.chdir(before)
    return told.getvalue(), "", code


def _lent_runner() -> Path:
    """A folder with asv_runner alone, for interpreters that have no asv of their own.

    It is of the standard library only, so that any of them can import it.
    """
    folder = STATE / "runner"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "asv_runner"
    target = Path(asv_runner.__file__).parent
    if not link.exists() or link.resolve() != target.resolve():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return folder
