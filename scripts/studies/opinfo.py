"""Judges PyTorch's own gradients: every entry of its OpInfo database.

    python scripts/studies/opinfo.py float64 [--only NAME,...] [--share 0/7]

Each entry that has a float autograd on the CPU is traced, PyTorch's outputs and
gradients of each sample are judged against the engine's graph, and errors are planted.
Records go to results/opinfo/<dtype>.json, one per entry, as soon as they are made. Then
it prints the figures of docs/pytorch.md. The night judges a share. The last line and
the exit code say whether a disagreement has no finding.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gradwatch.harness.check.frameworks.pytorch import array_of
from gradwatch.harness.judging.orders import derivatives
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Asked, Reference, wider
from gradwatch.harness.judging.verdict import allowed, judge_tensors
from gradwatch.harness.project import documents
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.tracing import Untraceable
from gradwatch.harness.tracing.traced import Traced, trace

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "results" / "opinfo"
FINDINGS = ROOT / "results" / "pytorch"
SAMPLES = 8  # of each entry, as in the sweep of docs/pytorch.md
ELEMENTS = 100_000  # of a sample's tensors: extended precision is slow
SECONDS = 120  # of processor time for an entry; the slowest honest one takes 30
# A planted error's relative size: decades above roundoff, but too small to notice.
SCALE = {"float64": 1e-6, "float32": 1e-3}

Record = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Function = Callable[..., tuple[Any, ...]]


class Late(Exception):
    """An entry has used up its time."""


class NothingToJudge(Exception):
    """Nothing of a sample can be judged; says why, by a key of the page's reasons."""


# One sample -----------------------------------------------------------------------


def entries(dtype: torch.dtype) -> Iterator[Any]:
    """OpInfo's entries whose gradients PyTorch says it has for this dtype on a CPU."""
    # Its tests' own module forbids, when it is imported, to set flags in this process.
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db:
        if entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu"):
            yield entry


def as_function(entry: Any, sample: Any) -> tuple[Function, list[Any], list[bool]]:
    """A sample as a function of its tensors, they, and which of them want gradients."""
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> tuple[Any, ...]:
        given = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = tree_unflatten(given, spec)
        out = sample.output_process_fn_grad(entry.op(first, *args, **kwargs))
        return tuple(v for v in tree_leaves(out) if isinstance(v, torch.Tensor))

    tensors = [flat[i].detach() for i in places]
    return function, tensors, [flat[i].requires_grad for i in places]


class Trial:
    """A function of tensors, run by PyTorch's autograd and traced."""

    def __init__(
        self, function: Function, tensors: list[Any], wanted: list[bool], dtype: str
    ) -> None:
        self.function, self.tensors, self.wanted = function, tensors, wanted
        self.gradients, self.outputs, self.cotangents = self._run(function, 0)
        kinds = [t.real.dtype for t in (*tensors, *self.outputs.values())]
        names = [str(k).removeprefix("torch.") for k in kinds if k.is_floating_point]
        # The narrowest type limits the accuracy of a function that casts.
        known = [n for n in (dtype, *names) if n in PRECISIONS]
        self.dtype = max(known, key=lambda n: PRECISIONS[n].roundoff)
        self.traced: Traced = trace(function, marked(tensors, wanted))

    def _run(self, function: Function, seed: int) -> tuple[Any, Tensors, Tensors]:
        """PyTorch's gradients and outputs, and their cotangents."""
        pairs = zip(self.tensors, self.wanted, strict=True)
        copies = [t.clone().requires_grad_(w) for t, w in pairs]
        made = _run_on_copies(function, copies)
        count = len(made)
        self.results = ["y"] if count == 1 else [f"y{i}" for i in range(count)]
        named = zip(self.results, made, strict=True)
        outputs = {n: y for n, y in named if y.requires_grad}
        if not outputs:
            raise NothingToJudge("no gradient")
        draw = torch.Generator().manual_seed(seed)
        cotangents = {n: drawn(y, draw) for n, y in outputs.items()}
        plain = ["x"] if len(copies) == 1 else [f"x{i}" for i in range(len(copies))]
        leaves = {
            f"d{n}": t for n, t in zip(plain, copies, strict=True) if t.requires_grad
        }
        found = torch.autograd.grad(
            list(outputs.values()),
            list(leaves.values()),
            list(cotangents.values()),
            allow_unused=True,
        )
        return dict(zip(leaves, found, strict=True)), outputs, cotangents

    def reference(self) -> tuple[Reference, set[str]]:
        """The reference, and the gradients that no path of the graph leads to."""
        wide = wider(PRECISIONS[self.dtype])
        cotangents = {n: numbers(c).astype(wide) for n, c in self.cotangents.items()}
        unreached: set[str] = set()

        def build(wide: np.dtype[Any]) -> Mapping[str, Any]:
            made = self.traced.graph(wide)
            inputs = {n[1:]: made.leaves[n[1:]] for n in self.gradients}
            outputs = {n: made.outputs[n] for n in cotangents}
            found, nowhere = derivatives("vjp", outputs, inputs, cotangents, {})
            unreached.update(nowhere)
            return {**found, **outputs}

        return Reference(Asked(build, self.dtype)), unreached

    def stale(self) -> Any:
        """Gradients for other cotangents, as of a buffer that was not rewritten."""
        return self._run(self.function, 1)[0]

    def lost_path(self) -> Any:
        """Gradients where each input's first use passes nothing on."""
        return self._run(_FirstUseDetached(self.traced.program).run, 0)[0]


def marked(tensors: list[Any], wanted: list[bool]) -> list[Any]:
    """The tensors, with `requires_grad` as wanted."""
    pairs = zip(tensors, wanted, strict=True)
    return [t.detach().requires_grad_(w) for t, w in pairs]


def _run_on_copies(function: Function, copies: list[Any]) -> tuple[Any, ...]:
    """The outputs; NothingToJudge for a view that needs storage its copy lacks.

    Its random numbers start from the same seed as in `trace`.
    """
    try:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return function(*copies)
    except RuntimeError as error:
        if "setStorage" in str(error):
            raise NothingToJudge("storage") from error
        raise


class _FirstUseDetached(torch.fx.Interpreter):
    """An interpreter that detaches an input with several users for the first one."""

    def fetch_args_kwargs_from_env(self, n: torch.fx.Node) -> Any:
        def value(source: torch.fx.Node) -> Any:
            users = list(source.users)
            held = self.env[source]
            first = source.op == "placeholder" and len(users) > 1 and users[0] is n
            return held.detach() if first else held

        return torch.fx.node.map_arg((n.args, n.kwargs), value)


def drawn(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Random numbers in the shape and type of a tensor."""
    wide = torch.promote_types(like.dtype, torch.float64)
    return torch.randn(like.shape, generator=draw, dtype=wide).to(like.dtype)


def numbers(tensor: Any) -> Any:
    """A tensor as a real NumPy array; bfloat16, which NumPy lacks, in float32."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    return array_of(torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor)


def judged(trial: Trial, right: Reference, got: Mapping[str, Any]) -> tuple[Any, ...]:
    """The verdicts on arrays by name, whatever type the function casts to."""
    return judge_tensors(right, got, dict.fromkeys(got, trial.dtype))


def one_sample(entry: Any, sample: Any, dtype: str) -> Record:
    """The verdicts on a sample's outputs and gradients, and on planted errors."""
    trial = Trial(*as_function(entry, sample), dtype)
    right, unreached = trial.reference()
    tensors = {**trial.gradients, **trial.outputs}
    got = {
        n: numbers(t) for n, t in tensors.items() if t is not None or n not in unreached
    }
    found = judged(trial, right, got)
    sound = [j.tensor for j in found if j.verdict == "agree" and j.tensor[0] == "d"]
    return {
        "ops": trial.traced.ops,
        "judged": [_told(j, got[j.tensor]) for j in found],
        "planted": planted(trial, right, {n: got[n] for n in sound}),
    }


def _told(j: Any, array: Any) -> Record:
    keys = ("tensor", "verdict", "ratio", "limit", "vacuous", "radius_kind", "message")
    empty = array is not None and array.size == 0
    return {**{k: getattr(j, k) for k in keys}, "empty": empty}


# Planted errors ---------------------------------------------------------------------


def planted(trial: Trial, right: Reference, sound: Mapping[str, Any]) -> Record:
    """The caught and the planted errors of each kind, and the messages of missed ones.

    An error counts where it moves some element by more than `SCALE` of the largest
    element that is not vacuous; a smaller one is not counted as planted.
    """
    counts: Record = {}
    for kind, wrong in _mistakes(trial, sound).items():
        for name, array in wrong.items():
            right_one = sound.get(name)
            if (
                right_one is None
                or array is None
                or not _visible(array, right_one, trial)
            ):
                continue
            (verdict,) = judged(trial, right, {name: array})
            caught, tried, missed = counts.setdefault(kind, [0, 0, []])
            if verdict.passes:
                share = _allowed_share(right, name, np.abs(array - right_one))
                missed.append(f"{name}: {verdict.verdict}; {share:.2g}")
            counts[kind] = [caught + (not verdict.passes), tried + 1, missed]
    return counts


def _allowed_share(right: Reference, name: str, moved: Any) -> float:
    """The relative error allowed at the element that an error moves most."""
    place = np.unravel_index(np.argmax(moved), moved.shape)
    value = right.radii().bounds[name].value[place]
    return float(allowed(right, "first", name)[place] / abs(value))


def _mistakes(trial: Trial, sound: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    scale = 1 + SCALE.get(trial.dtype, 0.1)  # 16 bits hold no less
    wrong: dict[str, Mapping[str, Any]] = {
        "scaled": {n: (a * scale).astype(a.dtype) for n, a in sound.items()},
        "sign": {n: -a for n, a in sound.items()},
        "one element zeroed": {n: _zeroed(a) for n, a in sound.items()},
        "stale": {n: numbers(g) for n, g in trial.stale().items()},
    }
    try:
        lost = trial.lost_path()
    except (NothingToJudge, RuntimeError):  # nothing is left, or it cannot be run
        lost = {}
    wrong["lost path"] = {
        n: np.zeros_like(sound[n]) if g is None else numbers(g)
        for n, g in lost.items()
        if n in sound
    }
    return wrong


def _zeroed(array: Any) -> Any:
    wrong = array.copy()
    if wrong.size:
        wrong.reshape(-1)[np.argmax(np.abs(wrong))] = 0
    return wrong


def _visible(wrong: Any, array: Any, trial: Trial) -> bool:
    if wrong is None or not array.size or wrong.shape != array.shape:
        return False
    with np.errstate(all="ignore"):
        moved = np.abs(wrong.astype(np.float64) - array).max()
        size = np.abs(array.astype(np.float64)).max()
    return bool(moved > 0.5 * SCALE.get(trial.dtype, 0.1) * size)


# The sweep --------------------------------------------------------------------------


def one_entry(
    entry: Any, dtype: str, samples: int = SAMPLES, verbose: bool = False
) -> Record:
    """All samples of an entry, with the reason of each that was not judged."""
    name = entry.formatted_name
    record: Record = {"name": name, "samples": [], "not": []}
    record["finding"] = listed_findings().get(name, "")
    started = time.monotonic()

    def judge(i: int, sample: Any) -> None:
        try:
            record["samples"].append(one_sample(entry, sample, dtype))
        except (Untraceable, NothingToJudge, Late):
            raise
        except Exception as error:  # noqa: BLE001  # one sample must not end the sweep
            if verbose:
                traceback.print_exc()
            why = f"{type(error).__name__}: {str(error)[:200]}"
            record["not"].append(reason(i, "error", "", why))

    record["not"] += try_samples(entry, dtype, samples, SECONDS, judge)
    record["gradcheck"] = gradcheck(entry) if _disagrees(record) else None
    record["seconds"] = round(time.monotonic() - started, 2)
    return record


def try_samples(
    entry: Any,
    dtype: str,
    count: int,
    seconds: int,
    judge: Callable[[int, Any], None],
    least: int = 0,
) -> list[Record]:
    """Judge the first samples of `least` elements or more; return why any was not."""
    reasons: list[Record] = []
    torch.manual_seed(0)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        made = entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        small = (s for s in made if least <= _elements(s) <= ELEMENTS)
        for i, sample in enumerate(itertools.islice(small, count)):
            try:
                judge(i, sample)
            except Untraceable as no:
                reasons.append(reason(i, no.kind, no.op, no.why))
            except NothingToJudge as no:
                reasons.append(reason(i, str(no), "", ""))
    except Late:
        reasons.append(reason(-1, "time", "", f"over {seconds} s of processor"))
    except Exception as error:  # noqa: BLE001  # PyTorch's own makers of samples fail too
        reasons.append(reason(-1, "samples", "", str(error)[:200]))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return reasons


def reason(sample: int, kind: str, op: str, why: str) -> Record:
    """The record of the reason why a sample is not judged."""
    return {"sample": sample, "kind": kind, "op": op, "why": why}


def _elements(sample: Any) -> int:
    values = tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(v.numel() for v in values if isinstance(v, torch.Tensor))


def _disagrees(record: Record) -> bool:
    every = (j["verdict"] for s in record["samples"] for j in s["judged"])
    return any(verdict not in PASSING for verdict in every)


def gradcheck(entry: Any) -> str:
    """The result of torch.autograd.gradcheck on an entry's samples in float64."""
    torch.manual_seed(0)
    made = entry.sample_inputs("cpu", torch.float64, requires_grad=True)
    for sample in itertools.islice(made, SAMPLES):
        function, tensors, wanted = as_function(entry, sample)
        pairs = zip(tensors, wanted, strict=True)
        inputs = [t.clone().requires_grad_(w) for t, w in pairs]
        try:
            torch.autograd.gradcheck(function, inputs)
        except (RuntimeError, ValueError) as error:
            return f"fails: {str(error).strip().splitlines()[0][:80]}"
    return "passes"


@functools.cache
def listed(constant: str) -> dict[str, Path]:
    """The scripts that explain wrong entries, by the entries that they list."""
    return {
        name: script
        for script in sorted(FINDINGS.rglob("*.py"))
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant
        for name in ast.literal_eval(node.value)
    }


def listed_findings() -> dict[str, str]:
    """The finding that explains an entry's disagreements."""
    return {name: script.stem for name, script in listed("ENTRIES").items()}


def recorded(
    path: Path, dtype: str, share: str, only: str, judge: Callable[[Any], Record]
) -> list[Record]:
    """One record an entry, written after each; records of other entries stay."""

    def late(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGPROF, late)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else []
    records: dict[str, Record] = {r["name"]: r for r in known}
    turn, shares = map(int, share.split("/"))
    for entry in [*entries(getattr(torch, dtype))][turn % shares :: shares]:
        name = entry.formatted_name
        if not only or name in only.split(","):
            print(name, flush=True)  # the last line, where it ends the process
            records[name] = judge(entry)
            documents.replace_file(path, documents.compact([*records.values()]))
    return [*records.values()]


def sweep(dtype: str, only: str, share: str, path: Path) -> int:
    """Judge entries; return 1 for a disagreement without finding, or no verdict."""
    judge = functools.partial(one_entry, dtype=dtype, verbose=bool(only))
    records = recorded(path, dtype, share, only, judge)
    summary(records)
    found = [r["name"] for r in records if _disagrees(r) and not r["finding"]]
    count = sum(len(s["judged"]) for r in records for s in r["samples"])
    said = f"{count:,} tensors of {len(records)} OpInfo entries judged"
    said = f"without a finding: {', '.join(found)}" if found else said
    print(f"{dtype}: {said}")
    return int(bool(found) or not count)


def summary(records: list[Record]) -> None:
    """Print the results of a sweep."""
    whole = sum(bool(r["samples"]) and not r["not"] for r in records)
    part = sum(bool(r["samples"]) for r in records) - whole
    print(f"{len(records)} entries: {whole} judged completely, {part} in part")
    every = [(r["name"], j) for r in records for s in r["samples"] for j in s["judged"]]
    print(Counter(j["verdict"] for _, j in every))
    print({k: f"{c} of {n}" for k, (c, n) in caught(records).items()})
    kinds = Counter(kind for r in records for kind in {n["kind"] for n in r["not"]})
    print(f"not judged completely, by reason: {dict(kinds)}")
    for r in records:
        for kind, (_, _, missed) in (
            p for s in r["samples"] for p in s["planted"].items()
        ):
            for each in missed:
                print("MISSED", r["name"], kind, each)
        for why in {f"{n['kind']}: {n['op']} {n['why'][:90]}" for n in r["not"]}:
            print("NOT", r["name"], why)
    for name, j in every:
        if j["verdict"] not in PASSING:
            print(j["verdict"].upper(), name, j["message"][:200])


def caught(records: list[Record]) -> dict[str, tuple[int, int]]:
    """The numbers of caught and of all planted errors, by kind."""
    found: dict[str, tuple[int, int]] = {}
    for kinds in (s["planted"] for r in records for s in r["samples"]):
        for kind, (hit, tried, _) in kinds.items():
            before = found.get(kind, (0, 0))
            found[kind] = before[0] + hit, before[1] + tried
    return found


def options(about: str | None) -> argparse.ArgumentParser:
    """The command-line options of the sweeps of either order."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", default="", help="names of entries, by commas")
    parser.add_argument("--share", default="0/1", help="every n-th entry: k/n")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    return parser


def main() -> None:
    """Run the sweep of the command line."""
    parser = options(__doc__)
    parser.add_argument("dtype", choices=sorted(SCALE))
    parser.add_argument("--out", type=Path, help="where the records go")
    given = parser.parse_args()
    path = given.out or RESULTS / f"{given.dtype}.json"
    sys.exit(sweep(given.dtype, given.only, given.share, path))


if __name__ == "__main__":
    main()
