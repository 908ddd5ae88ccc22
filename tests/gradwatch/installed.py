"""gradwatch as somebody else has it: its wheel, in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from gradwatch.harness.project.paths import ROOT

BUILT = ("gradwatch", "harness", "impls", "benchmarks", "pyproject.toml")

_BUILD = (
    "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
)

#: Compiled, as pip does it.
_INSTALL = """
import compileall, sys, zipfile
wheel, site = sys.argv[1:]
zipfile.ZipFile(wheel).extractall(site)
compileall.compile_dir(f"{site}/gradwatch", quiet=1)
"""


def wheel(folder: Path) -> Path:
    """Build this checkout's wheel, from a copy: nothing of an older build is in it."""
    copy = folder / "source"
    copy.mkdir()
    for name in (*BUILT, "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(ROOT / name, copy / name)
    call = [sys.executable, "-c", _BUILD, str(folder)]
    subprocess.run(call, cwd=copy, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, built: Path, packages: tuple[str, ...] = ()) -> Path:
    """A fresh environment with a wheel in it; its interpreter.

    Besides the wheel it has some of the running environment's packages (folders of
    site-packages), or with none named all of them: nothing is downloaded.
    """
    call = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(call, check=True)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = site / "site-packages"
    subprocess.run([sys.executable, "-c", _INSTALL, built, site], check=True)
    ours = Path(sysconfig.get_path("purelib"))
    for name in packages:
        (site / name).symlink_to(ours / name)
    if not packages:  # a path in a .pth file: .pth files that lie there are not read
        (site / "running.pth").write_text(f"{ours}\n")
    script = folder / "bin" / "gradwatch"
    python = folder / "bin" / "python"
    script.write_text(f"#!{python}\nfrom gradwatch.__main__ import main\nmain()\n")
    script.chmod(0o755)
    return python


def run(python: Path, *call: object, cwd: Path, code: int = 0) -> str:
    """What a program printed, which must end with an exit code."""
    ours = ("GRADWATCH_PROJECT", "PYTHONPATH", "COLUMNS")
    variables = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(
        [python, *map(str, call)],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
