"""How gradwatch is built: in the wheel, all that is ours lies under the name gradwatch.

In a checkout `harness`, `impls` and `benchmarks` are packages of their own. In other
people's environments these names are theirs: the wheel holds gradwatch.harness,
gradwatch.impls and gradwatch.benchmarks, and the imports in them are rewritten to
match. Everything else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

OURS = ("harness", "impls", "benchmarks")

#: Such as `from harness.project import git`; the other form of import is refused.
FROM = re.compile(rf"^(\s*from )((?:{'|'.join(OURS)})\b)", re.M)


class BuildPy(build_py):
    """Copies the modules, as ever, and rewrites the imports in the copies."""

    def build_module(
        self, module: str, module_file: str, package: str | list[str] | tuple[str, ...]
    ) -> tuple[str, bool]:
        """Copy one module."""
        copy, copied = super().build_module(module, module_file, package)
        if not self.editable_mode:
            file = Path(copy)
            file.write_text(rewritten(file.read_text("utf-8")), encoding="utf-8")
        return copy, copied


def rewritten(source: str) -> str:
    """The same module for the wheel.

    Raises:
        ValueError: It says `import harness`, which binds a name that the wheel lacks.
    """
    plain = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import)]
    for name in (alias.name for node in plain for alias in node.names):
        if name.partition(".")[0] in OURS:
            raise ValueError(f"write it as `from ... import`: import {name}")
    return FROM.sub(r"\1gradwatch.\2", source)


def layout() -> dict[str, object]:
    """Which packages there are, and where they lie.

    An editable install is a plain .pth file with the checkout's folder: no import hook
    slows down each worker, and every page is found where it was written.
    """
    ours = [f"{name}{end}" for name in OURS for end in ("", ".*")]
    if "editable_wheel" in sys.argv:
        packages = _folders(["gradwatch", "gradwatch.*", *ours])
        return {"packages": packages, "package_dir": {"": "."}}
    inner = [f"gradwatch.{name}" for name in _folders(ours)]
    places = {f"gradwatch.{name}": name for name in OURS}
    packages = _folders(["gradwatch", "gradwatch.*"])
    return {"packages": packages + inner, "package_dir": places}


def _folders(include: list[str]) -> list[str]:
    """Packages, and folders of templates in them."""
    return find_namespace_packages(include=include, exclude=["*.__pycache__"])


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPy}, **layout())
