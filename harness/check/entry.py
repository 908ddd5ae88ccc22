"""`check`, the front door, and `gradcheck` as PyTorch calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwatch.harness.check.choice import Choice
from gradwatch.harness.check.frameworks import are_of_jax
from gradwatch.harness.check.report import Report
from gradwatch.harness.check.session import Session
from gradwatch.harness.check.shapes import Shapes
from gradwatch.impls.contract import Case, Op

Reference = str | Op | Callable[..., Any]


def check(
    reference: str | Op | Callable[..., Any],
    candidate: Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    shapes: Shapes | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dtypes: str | Sequence[str] | None = None,
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
    reference's own arithmetic can make (docs/judging.md). What is tried is listed in
    docs/check.md.

    Args:
        reference: A function of PyTorch's or JAX's, a module, an `Op`, or the name of
            an op page. Its mathematics is the truth; no framework's backward is asked.
        candidate: Takes the same tensors: a function, `Function.apply`, a module. A
            module is called with the reference's parameters and buffers; a plain
            function gets them after the inputs. Left out, the reference's own gradient
            is judged: PyTorch's, or the backward of a `torch.autograd.Function`, whose
            forward is then the definition.
        inputs: The positional arguments, for numbers of your own. Of tensors of floats
            those that require a gradient are differentiated, or all where none does.
        shapes: For numbers made here, one for each input: [(64, 1000)], "64x1000",
            "64x=3" where the 3 must stay, "64x1000:bool" for a mask, "64:10" for whole
            numbers below 10.
        kwargs: Keyword arguments of both functions, such as {"dim": -1}.
        dtypes: "float64", "float32", "float16", "bfloat16", one or several; by
            default that of `inputs`, else float32.
        device: Where the candidate runs: "cpu", "cuda".
        compute: Precision of the candidate's intermediate values, where it is not that
            of the tensors.
        cases: Several sets of shapes: Case("rows", x=(3, 8), dim=-1); what is no shape
            is a keyword argument. By default those of the op page.
        seed: Of all random numbers.
        order: "vjp": outputs and gradients. "jvp": forward mode, the tangent of each
            output. "hvp": the double backward, the gradients of the sum of gradient *
            tangent by inputs and cotangents. What PyTorch refuses, such as a Function
            that is marked once_differentiable, is `unsupported`, and does not pass.
        only, skip: Trials by name: "large", "tails", "sliced". The caller's own shape
            and numbers are always tried.
        quick: Try nothing else, once in each precision.
        edges: What is wrong for empty, infinite, nan, huge (1e7), shifted (1e4 + 1e-3
            N(0, 1)), constant and subnormal inputs: "report" has a line of its own and
            does not fail, "fail", "skip".
        strict: The edges fail, and so does an exception for other inputs than the
            caller's own, which is otherwise counted as a refusal.
        budget: Seconds of processor time for the trials beside the caller's own, 30 if
            not said; the report says which were left out.
        train: Steps of a training beside the reference: all are compared with it, and
            of each stage two are judged.
        name: Of what is judged, in the report, in place of its own.

    Returns:
        A Report. What the candidate does wrong is in it: an exception, a gradient that
        is None, another shape or dtype are verdicts.

    Raises:
        ValueError: The call cannot be judged: no inputs, or parameters that do not fit.
        harness.tracing.Untraceable: The reference cannot be followed; says where, why
            and the way round.
        UnknownName: No op page, dtype, device or trial bears that name.
    """
    choice = Choice(only, skip, quick, edges, strict, budget, train)
    dtypes = dtypes.split(",") if isinstance(dtypes, str) else dtypes
    given = None if inputs is None else _several(inputs)
    session = Session(
        *(reference, candidate, device, compute, seed, order),
        choice=choice,
        name=name,
        of_jax=are_of_jax(reference, candidate, given),
    )
    return session.run(
        inputs=None if given is None else {"given": given},
        shapes=shapes,
        kwargs=kwargs,
        dtypes=dtypes,
        cases=cases,
    )


#: What PyTorch's gradcheck takes and a derived tolerance has no use for.
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

    `torch.autograd.gradcheck` takes the same, and needs float64. Here every precision
    of `check` will do: the function's own forward is the definition, and every element
    of every gradient is judged.

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
    return _agrees(
        "gradcheck", func, inputs, orders, raise_exception, as_pytorch, cotangents=()
    )


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
    given = _several(grad_outputs)
    return _agrees(
        "gradgradcheck", func, inputs, ["hvp"], raise_exception, as_pytorch, given
    )


def _several(values: Any) -> tuple[Any, ...]:
    if values is None:
        return ()
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def _agrees(
    name: str,
    func: Callable[..., Any],
    inputs: Any,
    orders: Sequence[str],
    raises: bool,
    as_pytorch: Mapping[str, Any],
    cotangents: tuple[Any, ...],
) -> bool:
    import inspect

    from torch import autograd
    from torch.autograd.gradcheck import GradcheckError

    inspect.signature(getattr(autograd, name)).bind(func, inputs, **as_pytorch)
    args = _several(inputs)
    if not any(getattr(value, "requires_grad", False) for value in args):
        raise ValueError(f"{name} needs an input that requires a gradient")
    for order in orders:
        session = Session(
            func, None, order=order, choice=Choice(quick=True), cotangents=cotangents
        )
        if as_pytorch:
            session.notes.append(IGNORED)
        report = session.run(inputs={"given": args})
        if not report.passes and raises:
            raise GradcheckError(str(report))
        if not report.passes:
            return False
    return True
