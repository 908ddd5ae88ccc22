"""Lets another interpreter import our packages, and the project's modules.

Our packages are imported by their folder, so neither the interpreter's path nor a
user's folder called `harness` can change which ones are loaded. The measured code can
be that of another commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.project.paths import PREFIX, PROJECT, SOURCE

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
os.environ.update(place["variables"])
sys.path[:] = place["paths"] + [path for path in sys.path if path]
for name, folder in place["packages"]:
    bring(name, folder)
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
    if PREFIX:
        return [("gradwatch", SOURCE)]
    operations = SOURCE if PROJECT.table else measured
    ours = [(name, SOURCE / name) for name in ("harness", "gradwatch")]
    return [("impls", operations / "impls"), *ours]
