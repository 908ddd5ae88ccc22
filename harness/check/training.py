"""Training beside the reference: every step is compared with it, and a few are judged.

A mistake in few calls, or after the parameters have moved, shows only where every call
is compared. Each step's gradients are compared with PyTorch's own of the reference; of
each stage the step that is farthest off is judged, and one at random.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench, examined, row_of
from gradwatch.harness.check.frameworks import Bound, Elsewhere, Raised
from gradwatch.harness.check.frameworks.loop import LOSSES, OPTIMIZERS, parts
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.check.frameworks.pytorch import mapped
from gradwatch.harness.check.frameworks.runs import (
    Graph,
    Tensor,
    copies,
    floating,
    same,
)
from gradwatch.harness.check.report import Row
from gradwatch.harness.check.subjects.pytorch import TorchSubject, seed_of_draws
from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.judging.cases import Regime
from gradwatch.harness.judging.judgement import Judgement

#: Stages after the first one, which has the plainest choices and half of the steps.
STAGES = 8
#: Seconds of processor time for comparing steps: a reference may take one.
SECONDS = 20.0
#: The limits of a batch: a multiple of the caller's, and elements of its data.
LARGER, MOST = 8, 1 << 22
#: A share of the largest gradient that counts as zero: before a batch norm a bias has
#: a gradient of rounding errors alone, of which no two agree.
LITTLE = 1e-4
#: The choices that differ from stage to stage.
CHOICES = (
    *("batch", "start", "train", "learn", "grad"),
    *("loss", "weight", "optimizer", "lr", "threads"),
)

#: The contents of `.grad` before a step; or a backward with create_graph.
GRADS = "none", "zeros", "added up", "differentiable"

#: The regime of a step, whose numbers result from training.
TRAINING = Regime("training")

#: The tensors of a step, and a function that sends requests to `loop.Training`.
Record = Mapping[str, list[Any]]
Ask = Callable[..., Record]


def trained(
    subject: Any,
    ask: Ask,
    trials: Sequence[Trial],
    steps: int,
    seed: int,
    compute: str | None,
    notes: list[str],
    judged: list[Trial],
) -> Iterator[Row]:
    """The judgements of a training, which ends after a stage with a wrong one.

    `trials` are the caller's own, in one precision; `notes` gets a line, and `judged`
    the steps as trials.
    """
    rng = np.random.default_rng([seed, 7])
    end, ran, before = time.process_time() + SECONDS, 0, len(judged)
    plain = subject.bound(trials[0])
    # Strata: each choice takes each part of its range once, in an order of its own.
    strata = {
        name: (rng.permutation(STAGES) + rng.random(STAGES)) / STAGES
        for name in CHOICES
    }
    for i in range(-1, STAGES):
        trial = trials[max(i, 0) % len(trials)]
        shares = {name: float(strata[name][i]) for name in CHOICES}
        stage = Stage(subject, plain, trial, rng, shares, i, compute, judged)
        rows = list(stage.rows(ask, steps // (2 if i < 0 else 2 * STAGES), end))
        yield from rows
        ran += stage.ran
        blamed = (row for row in rows if not (row.refused or row.edge))
        if any(not row.judgement.passes for row in blamed) or time.process_time() > end:
            break
    count = len(judged) - before
    notes.append(f"trained for {ran} steps beside the reference; {count} are judged")


@dataclass
class Stage:
    """A part of a training; `shares` place each choice in its range, from 0 to 1."""

    subject: Any
    plain: Bound
    trial: Trial
    rng: np.random.Generator
    shares: Mapping[str, float]
    number: int
    compute: str | None
    judged: list[Trial]
    ran: int = 0

    def __post_init__(self) -> None:
        self.is_first = self.number < 0
        module = getattr(self.subject, "module", None)
        self.learns = not self.plain.call.state or self._of("learn", (False, True))
        drawn = not self.is_first and self.shares["train"] < 0.25
        self.flipped = drawn and module is not None
        self.trains = module is None or module.training != self.flipped
        if module is not None and self.flipped:
            self.subject = TorchSubject(copy.deepcopy(module).train(self.trains))

    def _of(self, name: str, choices: Sequence[Any]) -> Any:
        return choices[int(self.shares[name] * len(choices))]

    def _between(self, name: str, low: float, high: float) -> float:
        """A number between two, each decade being as likely as another."""
        return float(low * (high / low) ** self.shares[name])

    def rows(self, ask: Ask, steps: int, end: float) -> Iterator[Row]:
        """The judgements on the step farthest off, and on one at random."""
        kept: dict[str, Step] = {}
        try:
            begun = self._begun(ask)
            while begun and self.ran < steps and time.process_time() < end:
                step = self._step(ask)
                if step is None:
                    break
                self.ran += 1
                if step.off > (kept["farthest"].off if kept else -1.0):
                    kept["farthest"] = step
                if self.rng.random() * self.ran < 1:
                    kept["random"] = step
        except Raised as error:
            given = [] if error.ended else ask("started")["tensors"]
            if not given or self._expected(given, ()) is not None:  # it takes these
                own = self.is_first or error.ended
                raised = Judgement("all", "error", message=f"raised {error}")
                at = replace(self.trial, name=self._name(self.ran + 1), as_given=own)
                yield row_of(at, raised)
        for step in {step.number: step for step in kept.values()}.values():
            rows = self._judged(step)
            wrong = {row.judgement.tensor for row in rows if not row.judgement.passes}
            # Wrong outputs in the other mode: the candidate does not implement it.
            edge = self.flipped and not wrong.isdisjoint(self.plain.results)
            yield from (replace(row, edge=edge) for row in rows)

    def _step(self, ask: Ask) -> Step | None:
        """Run and compare the next step; None where the reference is not finite."""
        seed = int(self.rng.integers(1 << 31))
        draws = seed_of_draws((seed,)) if self.plain.draws else None
        record = ask("step", self._rows(), draws)
        if not self._is_whole(record):
            raise Raised("wrote into the pipe of its process", ended=True)
        if draws is not None:
            torch.manual_seed(draws)
        expected = self._expected(record["tensors"], record["cotangents"])
        if expected is None:
            return None
        found = self.ran + 1, seed, record, expected["cotangents"]
        return Step(*found, _off(record, expected))

    def _is_whole(self, record: Record) -> bool:
        """Whether a step's record is complete, and its inputs have the right shapes."""
        names = "tensors", "after", "gradients", "outputs", "cotangents"
        given, after, gradients, outputs, dys = (record.get(n, []) for n in names)
        return (
            [getattr(t, "shape", None) for t in given] == self.shapes
            and len(given) == len(after) == len(gradients)
            and len(outputs) == len(dys)
            and not any(t is None for t in (*outputs, *after))
        )

    def _name(self, number: int) -> str:
        where = "" if self.is_first else f" of stage {self.described}"
        return f"step {number}{where}"

    def _begun(self, ask: Ask) -> bool:
        """Begin the stage, with as many of the drawn choices as the reference takes."""
        for varied, by_rows in ((True, True), (False, True), (False, False)):
            asked = self._request(varied and not self.is_first, by_rows)
            pairs = zip(self.tables, self.by_rows, strict=True)
            rows = self._rows()
            given = [t[rows] if by else t for t, by in pairs] + asked["state"]
            self.shapes, expected = [t.shape for t in given], self._expected(given, ())
            if expected is not None:
                ask("stage", {**asked, "count": len(expected["outputs"])})
                return True
        return False

    def _rows(self) -> list[int]:
        """Random rows of the data for a batch."""
        return list(map(int, self.rng.permutation(2 * self.batch)[: self.batch]))

    def _request(self, varied: bool, by_rows: bool) -> dict[str, Any]:
        """The request to `loop.Training.stage`."""
        trial, rng = self.trial, self.rng
        called = trial.args, dict(trial.kwargs)
        given = [v for v in tree_leaves(called) if isinstance(v, Tensor)]
        length = next((len(t) for t in given if t.ndim), 0) if by_rows else 0
        self.by_rows = [0 < length == (len(t) if t.ndim else 0) for t in given]
        most = max(1, min(LARGER * length, MOST * length // max(1, sum(trial.sizes))))
        self.batch = round(self._between("batch", 1, most)) if varied else length
        picked = torch.from_numpy(rng.integers(max(length, 1), size=2 * self.batch))
        self.tables = [
            t.detach()[picked.to(t.device)] if by else t.detach()
            for t, by in zip(given, self.by_rows, strict=True)
        ]
        tables = iter(self.tables)
        self.follows = [w and self.learns for w in self.plain.wanted[: len(given)]]
        grad = "none" if self.is_first else self._of("grad", GRADS)
        optimizer = self._of("optimizer", list(OPTIMIZERS))
        loss = self._of("loss", list(LOSSES))
        weights = (1e-2, 1e2) if trial.dtype[-2:] == "16" else (1e-8, 1e4)
        weight = 1.0 if self.is_first else self._between("weight", *weights)
        self.described = (
            f"batch {self.batch}, {optimizer}, {loss} times {weight:.1g}"
            f"{'' if self.trains else ', in evaluation mode'}"
            f"{', gradients ' + grad if grad in GRADS[2:] else ''}"
        )
        return {
            "data": mapped(lambda _: next(tables), called),
            "by_rows": self.by_rows,
            "follows": self.follows,
            "names": self.plain.call.state,
            "state": self._start(varied),
            "learned": self.plain.wanted[len(given) :],
            "train": self.trains,
            "grad": grad,
            "one_thread": self.is_first or self.shares["threads"] > 0.25,
            "device": trial.device,
            "drawn": getattr(torch, trial.dtype),
            "seed": int(rng.integers(1 << 31)),
            "optimizer": optimizer,
            "lr": self._between("lr", 1e-3, 1e-1)
            / (weight if optimizer == "SGD" else 1.0),
            "loss": loss,
            "weight": weight,
            "is_mean": self.is_first,
        }

    def _start(self, varied: bool) -> list[Tensor]:
        """The parameters, as they are or drawn again at any scale, and the buffers."""
        learned = self.plain.wanted[len(self.follows) :]
        state = []
        for name, learns in zip(self.plain.call.state, learned, strict=True):
            held = self.trial.held(self.subject.state[name]).detach()
            if varied and learns and self.shares["start"] > 0.3:
                noise = torch.from_numpy(self.rng.standard_normal(tuple(held.shape)))
                size = held.std() if held.numel() > 1 else held.abs().sum()
                held = noise.to(held) * (size if size else 0.1)
                held = held * self._between("start", 0.1, 10)
            state.append(held)
        return state

    def _expected(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Record | None:
        """The reference's tensors of a step; None where it raises, or is not finite."""
        wanted = [*self.follows, *self.plain.wanted[len(self.follows) :]]
        function = getattr(self.subject, "function", self.plain.call.function)
        given = {"args": self.trial.args, "kwargs": self.trial.kwargs, "draws": {}}
        try:
            graph = Graph(
                replace(self.plain.call, function=function, **given), tensors, wanted
            )
            pairs = zip_longest(graph.outputs, cotangents[: len(graph.outputs)])
            dys = [_fitting(dy, y) for y, dy in pairs]
            gradients = copies(graph.backward(dys))
        except Exception:  # noqa: BLE001  # every library refuses numbers in its way
            return None
        found = [t for t in (*graph.first_outputs, *gradients) if t is not None]
        if not all(bool(torch.isfinite(t).all()) for t in found):
            return None
        return {
            "outputs": graph.first_outputs,
            "gradients": gradients,
            "cotangents": dys,
            "after": copies(graph.given),
        }

    def _judged(self, step: Step) -> list[Row]:
        """The judgements of a step."""
        record, count = step.record, len(self.follows)
        pairs = zip(record["tensors"][:count], self.follows, strict=True)
        new = iter([t.requires_grad_(follows) for t, follows in pairs])
        called = self.trial.args, dict(self.trial.kwargs)
        args, kwargs = mapped(lambda _: next(new), called)
        state = zip(self.plain.call.state, record["tensors"][count:], strict=True)
        trial = replace(
            self.trial,
            args=args,
            kwargs=kwargs,
            name=self._name(step.number),
            regime=TRAINING,
            cotangents=tuple(step.cotangents),
            seed=(step.seed,),
            thorough=False,
            as_given=self.is_first,
            state=dict(state),
        )
        seen = Observation(record["outputs"], record["gradients"], record["after"])
        changed = zip(record["tensors"], record["after"], strict=True)
        seen.faults += [
            ("input", i, "is overwritten, and not by the optimiser")
            for i, (before, after) in enumerate(changed)
            if not same(before, after)
        ]
        self.judged.append(trial)
        recorded = Elsewhere()
        recorded.observe = lambda *asked: seen
        return examined(Bench(self.subject, recorded, trial, self.compute, Diagnoses()))


class Step(NamedTuple):
    """A step: its record, the reference's cotangents, and the largest deviation."""

    number: int
    seed: int
    record: Record
    cotangents: list[Tensor | None]
    off: float


def _off(record: Record, expected: Record) -> float:
    """The largest relative deviation of a step's tensors."""
    found = (g for g in expected["gradients"] if g is not None)
    little = LITTLE * max((float(parts(g).double().norm()) for g in found), default=0.0)
    return max(
        _distance(got, right, little)
        for kind in ("outputs", "gradients", "after")
        for right, got in zip_longest(expected[kind], record[kind])
    )


def _fitting(dy: Tensor | None, y: Tensor) -> Tensor | None:
    """The cotangent of an output; ones where it does not fit a wrong output."""
    if not floating(y):
        return None
    fits = dy is not None and (dy.shape, dy.dtype) == (y.shape, y.dtype)
    return dy if fits else torch.ones_like(y)


def _distance(got: Tensor | None, right: Tensor | None, little: float) -> float:
    """The relative deviation of a tensor in norm; inf for another shape or type."""
    if right is None:
        return 0.0 if got is None or not bool(got.any()) else torch.inf
    if got is None or (got.shape, got.dtype) != (right.shape, right.dtype):
        return torch.inf
    exact, found = parts(right).double(), parts(got).double()
    size = float(exact.norm()) + little
    off = float((found - exact).norm())
    if off == 0:
        return 0.0
    return off / size if size and off == off else torch.inf
