"""`check`, the front door; `Session`, one check; `gradcheck` as PyTorch calls it."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradwatch.harness.check.choice import (
    COMPLEX,
    Budget,
    Choice,
    Shapes,
    Specs,
    Trial,
    each,
    handed_over,
    named,
    out_of_memory,
    parsed,
    planned,
    with_complex,
)
from gradwatch.harness.check.examine import Bench, examined, row_of
from gradwatch.harness.check.frameworks import (
    ARGUMENTS,
    Elsewhere,
    Raised,
    are_of_jax,
    dtype_of,
    framework,
    require_instance,
)
from gradwatch.harness.check.report import Report, Row, joined
from gradwatch.harness.check.subjects import OpSubject, subject_of
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.tracing import Untraceable
from gradwatch.harness.tracing.untraceable import callers_place, name_of
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.fork import forked
from gradwatch.harness.workers.lifetime import Died
from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Case, Op, as_tuple


def check(
    reference: str | Op | Callable[..., Any],
    candidate: Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dtypes: Any = None,
    device: str = "cpu",
    compute: str | None = None,
    cases: Sequence[Case] | None = None,
    seed: int = 0,
    order: str = "vjp",
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    quick: bool = False,
    edges: str = "report",
    strict: bool = False,
    budget: float | None = None,
    train: int = 0,
    name: str = "",
) -> Report:
    """Run a candidate forward and backward, and judge its outputs and gradients.

        check(FastSilu.apply, shapes=[(64, 1000)])
        check(torch.nn.functional.silu, FastSilu.apply, shapes=[(64, 1000)])

    No tolerance is given: that of each element is derived from the rounding errors the
    reference's own arithmetic can make (docs/judging.md). docs/check.md lists the
    trials.

    Args:
        reference: A function of PyTorch's or JAX's, a module, an `Op`, or the name of
            an op page. Its mathematics is the truth; no framework's backward is used.
        candidate: Takes the same tensors: a function, `Function.apply`, a module. A
            module is called with the reference's parameters and buffers; a plain
            function gets them after the inputs. Left out, the reference's own gradient
            is judged: PyTorch's, or the backward of a `torch.autograd.Function`, whose
            forward is then the definition.
        inputs: The positional arguments, for numbers of your own. Tensors of floats
            that require a gradient are differentiated, or all where none does.
        shapes: One for each input, for numbers made here: [(64, 1000)], "64x1000",
            "64x=3" where the 3 must stay, "64x1000:bool" for a mask, "64:10" for whole
            numbers below 10.
        kwargs: Keyword arguments of both functions, such as {"dim": -1}.
        dtypes: "float64", "float32", "float16", torch.bfloat16, one or several; by
            default that of `inputs`, else float32.
        device: The candidate's device: "cpu", "cuda".
        compute: Precision of the candidate's intermediate values, where it is not that
            of the tensors.
        cases: Several sets of shapes: Case("rows", x=(3, 8), dim=-1); other values are
            keyword arguments. By default those of the op page.
        seed: The seed of all random numbers.
        order: "vjp": outputs and gradients. "jvp": forward mode, the tangent of each
            output. "hvp": the double backward, the gradients of the sum of gradient *
            tangent by inputs and cotangents. Where PyTorch refuses, as for a Function
            that is marked once_differentiable, the verdict `unsupported` fails.
        only, skip: Trials by name: "large", "tails", "sliced". The caller's own shape
            and numbers are always tried.
        quick: Try nothing else, once in each precision.
        edges: Use of empty, infinite, nan, huge (1e7), shifted (1e4 + 1e-3 N(0, 1)),
            constant and subnormal inputs: "report" reports mistakes on a line of their
            own and does not fail, "fail", "skip".
        strict: Fail for mistakes at the edges, and for an exception at other inputs
            than the caller's own, which is otherwise counted as a refusal.
        budget: Seconds of processor time for the trials beside the caller's own, by
            default 30; the report says which were left out.
        train: Steps of a training beside the reference: all are compared with it, and
            of each stage two are judged.
        name: The candidate's name in the report, in place of its own.

    Returns:
        A Report. It has the candidate's mistakes as verdicts: an exception, a gradient
        that is None, another shape or dtype.

    Raises:
        ValueError: The call cannot be judged: no inputs, or parameters that do not fit.
        harness.tracing.Untraceable: The reference cannot be followed; says where, why
            and the way round.
        UnknownName: No op page, dtype, device or trial bears that name.
    """
    given = None if inputs is None else as_tuple(inputs)
    session = Session(
        *(reference, candidate, device, compute, seed, order),
        choice=Choice(only, skip, quick, edges, strict, budget, train),
        name=name,
        of_jax=are_of_jax(reference, candidate, given),
    )
    return session.run(
        inputs=None if given is None else {"given": given},
        shapes=shapes,
        kwargs=kwargs,
        dtypes=dtypes.split(",") if isinstance(dtypes, str) else dtypes,
        cases=cases,
    )


#: The note on arguments of PyTorch's gradcheck that a derived tolerance does not need.
IGNORED = "eps, atol, rtol and nondet_tol are not used: the tolerance is derived"


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    raise_exception: bool = True,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    **as_pytorch: Any,
) -> bool:
    """Whether the gradient of a function is right at some inputs.

    It takes the arguments of `torch.autograd.gradcheck`, but any precision, not only
    float64: the function's own forward is the definition, and every element of every
    gradient is judged.

    Args:
        func: Takes the inputs, returns a tensor or several.
        inputs: A tensor or several; those that require a gradient are differentiated.
        raise_exception: Raise where it is wrong; otherwise return False.
        check_forward_ad: Judge forward mode, too.
        check_backward_ad: Judge the backward.
        as_pytorch: `eps`, `atol`, `rtol` and the others of PyTorch's; not used.

    Raises:
        torch.autograd.gradcheck.GradcheckError: With the table of `check`.
        ValueError: No input requires a gradient.
        harness.tracing.Untraceable: The function cannot be followed.
        TypeError: PyTorch's gradcheck has no such argument.
    """
    orders = [*["vjp"] * check_backward_ad, *["jvp"] * check_forward_ad]
    return _agrees("gradcheck", func, inputs, orders, raise_exception, as_pytorch)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    raise_exception: bool = True,
    **as_pytorch: Any,
) -> bool:
    """Whether the double backward is right; see `gradcheck`.

    `grad_outputs` are the cotangents, one for each output; random where not given.
    """
    given = () if grad_outputs is None else as_tuple(grad_outputs)
    how = raise_exception, as_pytorch, given
    return _agrees("gradgradcheck", func, inputs, ["hvp"], *how)


def _agrees(
    name: str,
    func: Callable[..., Any],
    inputs: Any,
    orders: Sequence[str],
    raises: bool,
    as_pytorch: Mapping[str, Any],
    cotangents: tuple[Any, ...] = (),
) -> bool:
    from torch import autograd
    from torch.autograd.gradcheck import GradcheckError

    inspect.signature(getattr(autograd, name)).bind(func, inputs, **as_pytorch)
    args = as_tuple(inputs)
    if not any(getattr(value, "requires_grad", False) for value in args):
        raise ValueError(f"{name} needs an input that requires a gradient")
    for order in orders:
        session = Session(
            func, order=order, cotangents=cotangents, choice=Choice(quick=True)
        )
        session.notes += [IGNORED] * bool(as_pytorch)
        report = session.run(inputs={"given": args})
        if not report.passes and raises:
            raise GradcheckError(str(report))
        if not report.passes:
            return False
    return True


@dataclass
class Session:
    """A reference and a candidate on a device.

    `of_jax` says which of them is a function of JAX's; `source` are lines that define
    the candidate in a script; `announce` gets each trial before it is run; without it
    a terminal shows the trial.
    """

    reference: Any
    candidate: Callable[..., Any] | Elsewhere | None = None
    device: str = "cpu"
    compute: str | None = None
    seed: int = 0
    order: str = "vjp"
    source: str = ""
    choice: Choice = field(default_factory=Choice)
    name: str = ""
    cotangents: tuple[Any, ...] = ()
    of_jax: tuple[bool, bool] = (False, False)
    notes: list[str] = field(default_factory=list)
    announce: Callable[[str], object] = str

    def __post_init__(self) -> None:
        known("order", self.order, ORDERS)
        ours, theirs = self.of_jax
        of_jax = theirs or (ours and self.candidate is None)
        both = of_jax and (ours or isinstance(self.reference, (str, Op)))
        self.used = framework("jax" if both else "pytorch")
        self.device = self.used.device(self.device)
        require_instance(self.reference)
        require_instance(self.candidate)
        self.subject = subject_of(self.reference, self.candidate, ours)
        if kept := getattr(self.subject, "kept", ()):
            self.notes.append(f"buffers of the reference alone: {', '.join(kept)}")
        self.budget = Budget(self.choice.budget, self.subject.cost)
        self.steps = list[Trial]()  # those of a training that were judged
        if self.choice.train and (self.order != "vjp" or theirs or ours):
            raise ValueError("what is trained are gradients of PyTorch's functions")
        if isinstance(self.candidate, Elsewhere):
            if lacks := " and ".join(self.candidate.missing):
                self.notes.append(f"the candidate could not be given {lacks}")
            if self.order != "vjp":
                raise ValueError(f"{self.order} needs trusted code: --trusted")
        elif self.candidate is not None and not callable(self.candidate):
            kind = type(self.candidate).__name__
            raise TypeError(
                f"the candidate cannot be called: it is of type {kind}; tensors of your"
                " own go into inputs="
            )
        elif theirs and not both:
            from gradwatch.harness.check.frameworks.bridge import in_torch

            assert self.candidate is not None
            self.candidate = in_torch(self.candidate)

    def run(
        self,
        *,
        inputs: Mapping[str, Sequence[Any]] | None = None,
        shapes: Shapes | None = None,
        kwargs: Mapping[str, Any] | None = None,
        dtypes: Any = None,
        cases: Sequence[Case] | None = None,
    ) -> Report:
        """Run all trials in all precisions; `inputs` holds argument lists by name."""
        started = time.monotonic()
        if sum(given is not None for given in (inputs, shapes, cases)) > 1:
            raise ValueError("of inputs, shapes and cases one alone can be given")
        if any(self.of_jax) and self.used is not framework("jax"):
            from gradwatch.harness.check.frameworks.bridge import tensor_of

            inputs = inputs and framework("jax").mapped(tensor_of, dict(inputs))
        held = dict(inputs or {}), dict(kwargs or {}), dict(self.subject.state)
        ours = {dtype_of(t.real) for t in self.used.tensors(held)} & PRECISIONS.keys()
        main = max(ours, key=lambda n: PRECISIONS[n].digits, default="float32")
        with self.used.settings(self.device, self.compute), self._with_the_way_round():
            trials = list[Trial]()
            for given in as_tuple(dtypes or main):
                dtype = str(given).removeprefix("torch.")
                plain = known("dtype", COMPLEX.get(dtype, dtype), PRECISIONS)
                specs = list(self._specs(shapes, cases)) if inputs is None else []
                if dtype in COMPLEX:
                    specs = [(with_complex(s), extra) for s, extra in specs]
                with self.used.precision(plain):
                    trials += self._trials(plain, main, inputs, specs, kwargs or {})
            trials = self.choice.of(trials)
            with self.used.settings(self.device, self.compute):  # training changes them
                trained = list(self._trained([t for t in trials if t.as_given]))
            rows = [*self._rows(trials), *trained]
            self._refuse_other_steps(trials, rows)
        return Report(
            *(*self._names(), self.device, tuple(rows)),
            tuple(dict.fromkeys(self.notes)),
            time.monotonic() - started,
            script=partial(self._script, [*trials, *self.steps]),
            edges_fail=self.choice.edges == "fail",
            refusals_fail=self.choice.strict,
        )

    def _rows(self, trials: Sequence[Trial]) -> Iterator[Row]:
        """Every judgement on the trials that fit; a note says what is left out."""
        left_out, diagnoses, at = list[tuple[str, str]](), Diagnoses(), ""
        # What a mistake is called costs no later trial its place.
        self.budget.clock = lambda: time.process_time() - diagnoses.seconds
        with ticking(lambda: at, terminal=self.announce is str, log=False):
            for i, trial in enumerate(self.budget.affordable(trials, self.notes), 1):
                at = f"{trial.name} in {trial.dtype}, {i} of {len(trials)} trials"
                self.announce(at)
                try:
                    with self.used.precision(trial.dtype), _quiet(trial):
                        yield from self._examined(trial, diagnoses)
                except Exception as error:  # every library refuses numbers in its way
                    if trial.as_given:
                        raise
                    why = f"the reference raised {in_short(error)}"
                    left_out.append((out_of_memory(error) or why, trial.name))
        for why, names in joined(left_out).items():
            self.notes.append(f"left out, {why}: {names}")

    def _examined(self, trial: Trial, diagnoses: Diagnoses) -> list[Row]:
        """The judgements of one trial."""
        asked = self.subject, self.candidate, trial, self.compute
        if trial.regime.name != "empty" and (any(trial.sizes) or not trial.sizes):
            return examined(Bench(*asked, diagnoses), self.notes)

        # A backward of no elements may end the process, as that of torch.pdist does:
        # it runs in a fork, where the reference may refuse inputs of our own, too.
        def rows() -> list[Row]:
            takes = trial.as_given or self._takes(trial)
            return examined(Bench(*asked)) if takes else []

        if not self.used.forks():
            return rows()
        try:
            return forked(rows)
        except Died as how:
            message = f"ended the process: {how}"
            return [row_of(trial, Judgement("all", "error", message=message))]

    @property
    def _is_function(self) -> bool:
        """Whether the reference is the `apply` of a `torch.autograd.Function`."""
        owner = getattr(self.reference, "__self__", None)
        return inspect.isclass(owner) and hasattr(owner, "backward")

    def _trained(self, trials: Sequence[Trial]) -> Iterator[Row]:
        """Judge some steps of a training, in each precision."""
        if not self.choice.train:
            return
        from gradwatch.harness.check.frameworks.loop import Training
        from gradwatch.harness.check.training import trained

        candidate = self.candidate
        if isinstance(candidate, Elsewhere):
            used = candidate.train
        else:
            own = self.subject.own if candidate is None else candidate
            used = partial(_asked, Training(copy.deepcopy(own)))
        for dtype in dict.fromkeys(trial.dtype for trial in trials):
            of_one = [trial for trial in trials if trial.dtype == dtype]
            asked = self.choice.train, self.seed, self.compute, self.notes, self.steps
            yield from trained(self.subject, used, of_one, *asked)

    def _refuse_other_steps(self, trials: Sequence[Trial], rows: Sequence[Row]) -> None:
        """Raise where a forward that finds mistakes is no definition; else note why."""
        wrong = [r for r in rows if r.own and r.judgement.verdict == "disagree"]
        at = {r.trial for r in wrong}
        own = next((t for t in trials if t.as_given and t.name in at), None)
        traced, name = not isinstance(self.subject, OpSubject), self.subject.name
        if own is None or self.candidate is not None or not traced:
            return
        if not self.subject.steps_have_its_slope(own):
            raise ValueError(
                f"the steps of {name}'s forward have another slope than its values (an"
                " iteration, a rounding), so it needs a reference:"
                f" gradwatch.check(REFERENCE, {name}, ...)"
            )
        if any(r.judgement.expected == 0 for r in wrong):
            self.notes.append(
                "the forward is the definition, and has no slope there: a gradient that"
                " is meant to pass (straight through) needs a reference that has it,"
                f" such as lambda x: x + ({name}(x) - x).detach()"
            )

    @contextlib.contextmanager
    def _with_the_way_round(self) -> Iterator[None]:
        """Turn errors of a call that cannot be judged into advice."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if why := out_of_memory(error):
                raise ValueError(f"{why}: give smaller inputs") from error
            raise
        except TypeError as error:
            if not re.search("missing .* argument", str(error)):
                raise
            raise ValueError(f"{error}; {ARGUMENTS}") from error
        except Untraceable as error:
            if self.candidate is not None or not self._is_function:
                raise
            name = self.subject.name
            raise ValueError(
                f"the forward of {name} cannot be followed, so it needs a reference:"
                f" gradwatch.check(REFERENCE, {name}, ...); {error}"
            ) from error

    def _names(self) -> tuple[str, str]:
        """The names of reference and candidate; `name` replaces that of the latter."""
        if self.candidate is None and self._is_function:
            return "its own forward", self.name or self.subject.name
        if self.candidate is None:
            return self.name or self.subject.name, f"{self.used.TITLE}'s gradient"
        return self.subject.name, self.name or name_of(self.candidate)

    def _trials(
        self,
        dtype: str,
        main: str,
        inputs: Mapping[str, Sequence[Any]] | None,
        specs: Iterable[tuple[Specs, dict[str, Any]]],
        kwargs: Mapping[str, Any],
    ) -> Iterator[Trial]:
        blank = Trial(
            dtype=dtype,
            framework=self.used,
            kwargs=kwargs,
            seed=(self.seed,),
            device=self.device,
            cotangents=self.cotangents,
            order=self.order,
            main=main,
        )
        for label, args in (inputs or {}).items():
            yield from handed_over(blank, label, args)
        for sizes, extra in specs:
            elements = sum(math.prod(spec.shape) for spec in sizes)
            self.budget.require(named(sizes), elements)
            for trial in planned(
                *(replace(blank, kwargs={**kwargs, **extra}), sizes),
                takes=self._takes,
                notes=self.notes,
                pinned=self.subject.lengths,
            ):
                if trial.as_given:
                    self._refuse_what_raises(trial)
                yield trial

    def _takes(self, trial: Trial, both: bool = False) -> bool:
        """Whether the reference takes these inputs, and so does the candidate."""
        self.announce(trial.name)
        with contextlib.suppress(Exception), _quiet(trial):  # whatever they raise
            self.subject.admit(trial, self.budget.room)
            if both and callable(self.candidate):
                bound = self.subject.bound(trial, traced=False)
                call = self.used.bind(self.candidate, bound.call, bound.tensors)
                self.used.forward(call, bound.tensors, bound.wanted)
            return True
        return False

    def _refuse_what_raises(self, trial: Trial) -> None:
        """Raise where the reference takes no normal numbers, as a loss may not."""
        try:
            self.subject.bound(trial)
            self.subject.admit(trial, self.budget.room)
        except Untraceable:
            raise
        except self.used.RAISED as error:
            walk = traceback.walk_tb(error.__traceback__)
            names = [frame.f_globals["__name__"] for frame, _ in walk]
            while names[-1].endswith(".tracing.capture"):  # a frame of our tracing
                names.pop()
            if "gradwatch." in names[-1]:  # a call that does not fit
                raise
            says = ""
            if PRECISIONS[trial.dtype].digits < PRECISIONS["float32"].digits:
                says = f", or f(x.float()).to(x.dtype) where it takes no {trial.dtype}"
            place = callers_place(error)
            at = f" at {place}" if place.file else ""
            raise ValueError(
                f"the reference raises {in_short(error)}{at} ({trial.name}, numbers of"
                f" N(0, 1)); give inputs= where its domain is another{says}"
            ) from error

    def _specs(
        self, shapes: Shapes | None, cases: Sequence[Case] | None
    ) -> Iterator[tuple[Specs, dict[str, Any]]]:
        if shapes is not None:
            yield each(shapes), {}
            return
        op = getattr(self.subject, "op", None)
        listed = cases if cases is not None else op.cases.values() if op else ()
        for case in listed:
            fields = case.fields.items()
            shaped = [n for n, v in fields if (n in op.inputs if op else _is_shape(v))]
            if op is None or not op.aliases(case):
                specs = tuple(parsed(case.fields[n]) for n in shaped)
                yield specs, {n: v for n, v in fields if n not in shaped}
        if not listed:
            raise ValueError("nothing to run on: give inputs, shapes or cases")

    def _script(self, trials: Sequence[Trial], rows: Sequence[Row]) -> str:
        from gradwatch.harness.check.script import script

        with self.used.settings(self.device, self.compute):
            return script(self.subject, self.candidate, trials, rows, self.source)


@contextlib.contextmanager
def _quiet(trial: Trial) -> Iterator[None]:
    """Ignore warnings of inputs that the caller did not give."""
    with warnings.catch_warnings():
        if not trial.as_given:
            warnings.simplefilter("ignore")
        yield


def _asked(training: Any, what: str, *given: Any) -> Any:
    """The reply of a training in this process; raises `Raised`, as `Apart.train`."""
    try:
        return getattr(training, what)(*given)
    except (Exception, SystemExit) as error:  # whatever it raises
        raise Raised(in_short(error)) from error


def _is_shape(value: Any) -> bool:
    is_lengths = isinstance(value, tuple) and all(isinstance(n, int) for n in value)
    return is_lengths or isinstance(value, str)
