"""Forward and backward of one function, in the ways in which kernels fail.

Nothing is judged here. The module needs PyTorch alone, and the script of a finding
holds its text (`gradwatch.harness.check.script`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.workers.evaluate import in_short

Tensor = torch.Tensor
Function = Callable[..., Sequence[Tensor]]


def replica(tensor: Tensor) -> Tensor:
    """A copy in memory of its own, with the same strides (0 included) and gaps."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.detach().untyped_storage())
    shape, strides, start = tensor.shape, tensor.stride(), tensor.storage_offset()
    return whole.clone().as_strided(shape, strides, start)


def replicas(tensors: Sequence[Any]) -> list[Any]:
    """A copy of each tensor, as a function may write to its arguments."""
    return [None if tensor is None else replica(tensor) for tensor in tensors]


def _rolled(tensors: Sequence[Any]) -> list[Any]:
    """Copies with floats in other places; integers and booleans stay in theirs."""
    return [
        tensor.detach().roll(1 + tensor.numel() // 3)
        if floating(tensor) and tensor.numel() > 1
        else tensor
        for tensor in replicas(tensors)
    ]


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are equal, NaN being as good as another NaN."""
    if a is None or b is None:
        return a is b
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() and not all(t.untyped_storage().nbytes() for t in (a, b)):
        return False  # a function that can recover its inputs may free them
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


class Graph:
    """One forward pass, alive: its leaves, its outputs, and copies of these."""

    def __init__(
        self, function: Function, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> None:
        self.function, self.tensors, self.wanted = function, tensors, wanted
        self.left: dict[Any, dict[str, Any]] = {}
        for by_copies in (False, True):
            pairs = zip(tensors, wanted, strict=True)
            self.leaves = [replica(t).requires_grad_(w) for t, w in pairs]
            # The leaves that need a gradient.
            self.sources = [t for t, w in zip(self.leaves, wanted, strict=True) if w]
            self.given = [
                t.clone() if by_copies and t.requires_grad else t for t in self.leaves
            ]
            try:
                with self.held():
                    self.outputs = tuple(function(*self.given))
                break
            except RuntimeError as error:
                # PyTorch forbids writes to a leaf, but not to another layer's output.
                if by_copies or "leaf Variable" not in str(error):
                    raise
        self.first_outputs = [y.detach().clone() for y in self.outputs]

    def differentiable(
        self, cotangents: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs with a gradient and a cotangent that fits; these cotangents."""
        pairs = [
            (y, dy)
            for y, dy in zip(self.outputs, cotangents, strict=False)
            if dy is not None and y.requires_grad and y.shape == dy.shape
        ]
        return [y for y, _ in pairs], [dy for _, dy in pairs]

    def backward(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradient of each tensor; None where there is none or none is wanted."""
        outputs, dys = self.differentiable(cotangents)
        found: Sequence[Tensor | None] = ()
        if outputs and self.sources:
            found = self.swept(outputs, dys)
        gradients = (None if g is None else g.to_dense() for g in found)
        return [next(gradients, None) if wanted else None for wanted in self.wanted]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give a module these leaves, and the attributes its last pass has set."""
        holding = getattr(self.function, "holding", lambda _: nullcontext())
        bound = getattr(self.function, "function", None)  # in a script there is none
        parts = list(getattr(bound, "modules", list)())
        with holding(self.given):
            for part, left in self.left.items():
                vars(part).update(left)
            yield
            self.left = {part: dict(vars(part)) for part in parts}

    def swept(
        self, outputs: Sequence[Tensor], dys: Sequence[Tensor], again: bool = False
    ) -> Sequence[Tensor | None]:
        """The gradient by each source; `again` makes it differentiable itself.

        A backward may run a module's forward again, and finds the module's tensors as
        they were. A graph that refuses `autograd.grad`, or has no gradient by a
        parameter there, is swept as in training.
        """
        sources, found = self.sources, list[Tensor | None]()
        with self.held():
            try:
                found += torch.autograd.grad(
                    outputs,
                    sources,
                    dys,
                    retain_graph=True,
                    create_graph=again,
                    allow_unused=True,
                )
            except RuntimeError as error:
                if "compatible with .grad()" not in str(error):
                    raise
                return self._as_in_training(outputs, dys)
            missed = [s for s, g in zip(sources, found, strict=True) if g is None]
            if not any(hasattr(source, "_is_param") for source in missed):
                return found
            pairs = zip(found, self._as_in_training(outputs, dys), strict=True)
            return [mine if mine is not None else theirs for mine, theirs in pairs]

    def _as_in_training(
        self, outputs: Sequence[Tensor], dys: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients that `.backward()` adds to `.grad`, which is then restored.

        They are of a graph of its own, since some graphs can be swept only once.
        """
        fresh, asked = Graph(self.function, self.tensors, self.wanted), set(outputs)
        pairs = zip(self.outputs, fresh.outputs, strict=True)
        outputs = [y for before, y in pairs if before in asked]
        behind = [getattr(node, "variable", None) for node in nodes_behind(outputs)]
        leaves = [*fresh.sources, *(leaf for leaf in behind if leaf is not None)]
        before = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = None
            with fresh.held():
                torch.autograd.backward(outputs, dys)
            return [source.grad for source in fresh.sources]
        finally:
            for leaf, grad in zip(leaves, before, strict=True):
                leaf.grad = grad

    def changed_leaves(self) -> list[int]:
        """The indices of the tensors that the function wrote to."""
        pairs = enumerate(zip(self.given, self.tensors, strict=True))
        return [i for i, (now, before) in pairs if not same(now, before)]


def copies(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies that later calls cannot change."""
    return [None if t is None else t.detach().clone() for t in tensors]


def observe(
    function: Function,
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    frozen: Sequence[tuple[int, ...]] = (),
    thorough: bool = True,
) -> Observation[Tensor]:
    """Run a function forward and backward, and again while a second graph is alive.

    The first sweep stands alone: its verdict does not depend on what comes after it.

    Args:
        function: Takes copies of the tensors, returns a sequence of tensors.
        tensors, wanted: Its arguments, and which of these need a gradient.
        cotangents: One for each output; None where it is not differentiated.
        frozen: Sets of tensors; each needs no gradient in a further run.
        thorough: Also sweep one graph twice, the second time with another cotangent.
            Otherwise the second graph is alive in the first run, and there is no other.
    """
    first = Graph(function, tensors, wanted)
    if not thorough:
        return _beside(first, _another(first), cotangents)
    given = replicas(cotangents)
    gradients = copies(first.backward(given))
    seen = Observation(first.first_outputs, gradients, first.given)
    seen.faults += _mutated(first, cotangents, given)
    del first, gradients  # memory is for the graphs that follow
    try:
        again = Graph(function, tensors, wanted)
        other = _another(again)
        beside = _beside(again, other, cotangents)
        seen.faults += (fault for fault in beside.faults if fault not in seen.faults)
        _note(seen, "another graph alive", (), beside.gradients)
        seen.repeatable = all(map(same, beside.gradients, seen.gradients)) and all(
            map(same, beside.outputs, seen.outputs)
        )
        _sweep_again(again, cotangents, seen)
        del again, other, beside
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
        seen.raised.append(("another graph alive", (), in_short(error)))
    for places in frozen:
        part = [w and i not in places for i, w in enumerate(wanted)]
        try:
            graph = Graph(function, tensors, part)
            gradients = copies(graph.backward(replicas(cotangents)))
            if any(g is not None for g in gradients):  # else PyTorch itself raises
                _note(seen, "frozen", places, gradients)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # likewise
            seen.raised.append(("frozen", places, in_short(error)))
    return seen


def _note(
    seen: Observation[Tensor],
    how: str,
    places: tuple[int, ...],
    gradients: Sequence[Tensor | None],
) -> None:
    """Note gradients that have to be the same; equal ones are stored once."""
    pairs = zip(seen.gradients, gradients, strict=True)
    seen.others.append((how, places, [a if same(a, b) else b for a, b in pairs]))


def _another(first: Graph) -> Graph:
    """A graph of permuted inputs; of the same where the function refuses those.

    Times may have to ascend, or the outputs have other shapes.
    """
    function, wanted = first.function, first.wanted
    with suppress(Exception):  # whatever it raises
        other = Graph(function, _rolled(first.tensors), wanted)
        if [y.shape for y in other.outputs] == [y.shape for y in first.outputs]:
            other.first_outputs.clear()  # memory is for the sweeps that follow
            return other
    return Graph(function, first.tensors, wanted)


def _beside(
    graph: Graph, other: Graph, cotangents: Sequence[Tensor | None]
) -> Observation[Tensor]:
    """The results of a graph while another one is alive, and whether they persist."""
    given = replicas(cotangents)
    gradients = graph.backward(given)
    seen = Observation(graph.first_outputs, copies(gradients), graph.given)
    other.backward(_rolled(cotangents))
    again = "changed when the function was called again: its memory is used twice"
    outputs = zip(graph.outputs, graph.first_outputs, strict=True)
    pairs = {"output": outputs, "gradient": zip(gradients, seen.gradients, strict=True)}
    for kind, each in pairs.items():
        changed = (i for i, (now, before) in enumerate(each) if not same(now, before))
        seen.faults += [(kind, i, again) for i in changed]
    seen.faults += _mutated(graph, cotangents, given)
    return seen


def _mutated(
    first: Graph, cotangents: Sequence[Tensor | None], given: Sequence[Tensor | None]
) -> Iterator[tuple[str, int, str]]:
    """The caller's inputs and cotangents that were written to, as faults."""
    for i in first.changed_leaves():
        yield "input", i, "overwrites its input in the forward or the backward pass"
    for i, (before, after) in enumerate(zip(cotangents, given, strict=True)):
        if not same(before, after):
            yield "cotangent", i, "overwrites its cotangent in the backward pass"


def _sweep_again(
    first: Graph, cotangents: Sequence[Tensor | None], seen: Observation[Tensor]
) -> None:
    """Note gradients of a second sweep with the negative cotangent, negated again.

    A gradient is linear in its cotangent; a factor of two would round tiny numbers.
    """
    try:
        turned = first.backward([None if dy is None else -dy for dy in cotangents])
        back = [None if g is None else -g.detach() for g in turned]
        _note(seen, "second backward", (), back)
    except Exception as error:  # noqa: BLE001  # not every graph can be swept twice
        if "inplace operation" in str(error):  # PyTorch counts writes to what it saved
            seen.faults.append(("saved", 0, "overwritten before the second backward"))


def differentiated(
    order: str,
    function: Function,
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
    tangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The second derivatives of a function; None where autograd sees no path.

    "jvp": the tangent of each output that has a cotangent. "hvp": the gradients of the
    sum of gradient * tangent by each wanted tensor, then by each cotangent.
    """
    if order == "jvp":
        return _forwards(function, tensors, cotangents, tangents)
    graph = Graph(function, tensors, wanted)
    for y, dy in zip(graph.outputs, cotangents, strict=False):
        if dy is not None and y.shape != dy.shape:
            raise ValueError(f"output: shape {tuple(y.shape)}, not {tuple(dy.shape)}")
    along = [None if dy is None else replica(dy).requires_grad_() for dy in cotangents]
    outputs, dys = graph.differentiable(along)
    vs = [v for v in tangents if v is not None]
    second = [
        (dx, v)
        for dx, v in zip(graph.swept(outputs, dys, again=True), vs, strict=True)
        if dx is not None and dx.requires_grad
    ]
    sources = [*graph.sources, *(dy for dy in along if dy is not None)]
    if not second:
        return [None] * len(sources)
    pulled, at = [dx for dx, _ in second], [v for _, v in second]
    # The node of a Function marked once_differentiable is no ancestor of an input: for
    # the gradient by an input PyTorch skips it and returns None, where it should raise.
    if any(node.name() == "torch::autograd::Error" for node in nodes_behind(pulled)):
        zeros = [torch.zeros_like(dx) for dx in pulled]
        torch.autograd.backward(pulled, zeros, retain_graph=True)
    with graph.held():
        return copies(torch.autograd.grad(pulled, sources, at, allow_unused=True))


def nodes_behind(tensors: Sequence[Tensor]) -> Iterator[Any]:
    """Every node of autograd's graph behind some tensors, once."""
    stack, seen = [tensor.grad_fn for tensor in tensors], set[Any]()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [before for before, _ in node.next_functions]
        yield node


def _forwards(
    function: Function,
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    tangents: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The JVP of each output, by dual numbers, as in torch.func.jvp."""
    dual: Any = torch.autograd.forward_ad
    with dual.dual_level():
        with warnings.catch_warnings():  # PyTorch's own import, at its first dual
            warnings.simplefilter("ignore", DeprecationWarning)
            leaves = [
                replica(t)
                if v is None
                else dual.make_dual(t.detach().clone(), v.clone())
                for t, v in zip(tensors, tangents, strict=True)
            ]
        outputs = zip(function(*leaves), cotangents, strict=False)
        asked = [y for y, dy in outputs if dy is not None]
        return copies([dual.unpack_dual(y).tangent for y in asked])


def floating(value: Any) -> bool:
    """Whether a value is a tensor of floats or of complex numbers."""
    held = value.dtype if isinstance(value, Tensor) else torch.bool
    return held.is_floating_point or held.is_complex


def numbers(tensor: Tensor) -> Tensor:
    """The tensor as real numbers; complex ones have an axis more, of their parts."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def array_of(tensor: Tensor) -> Any:
    """The `numbers` of a tensor in NumPy, which lacks bfloat16: float32 holds it."""
    held = numbers(tensor).cpu()
    return np.asarray((held.float() if held.dtype == torch.bfloat16 else held).numpy())
