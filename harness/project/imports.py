"""Lets another interpreter import our packages, and the project's modules.

`gradwatch` is imported by its folder, so the interpreter's path cannot change which one
is loaded. The measured `impls` can be those of another commit, whose pages may still
import `impls` by that name alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwatch.harness.project.paths import INSTALLED, PROJECT, SOURCE

#: The first code that such an interpreter runs; the function below makes `place`.
START = """
import importlib.util, os, sys
def bring(name, folder):
    file = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[folder]
    )
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
class Old:  # `gradwatch.impls.contract` is the module `gradwatch.impls.contract`
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "impls":
            return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec):
        module = importlib.import_module("gradwatch." + spec.name)
        self.spec = module.__spec__
        return module
    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has replaced it
os.environ.update(place["variables"])
sys.path[:] = place["paths"] + [path for path in sys.path if path]
for name, folder in place["packages"]:
    bring(name, folder)
sys.meta_path.insert(0, Old())
"""


def place(measured: Path) -> dict[str, Any]:
    """What START needs to run the operations that lie in `measured`: builtin types.

    In a checkout these are its `impls`; all else of ours is this version's.
    """
    return {
        "packages": [(name, str(folder)) for name, folder in _packages(measured)],
        "paths": [str(path) for path in PROJECT.paths(measured)],
        "variables": PROJECT.variables(measured),
    }


def _packages(measured: Path) -> list[tuple[str, Path]]:
    if INSTALLED:
        return [("gradwatch", SOURCE)]
    operations = SOURCE if PROJECT.table else measured
    return [
        ("gradwatch", SOURCE / "gradwatch"),
        ("gradwatch.impls", operations / "impls"),
    ]
