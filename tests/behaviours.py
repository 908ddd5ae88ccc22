"""What a framework's autograd does, told by trying it: one function a behaviour.

    python -m tests.behaviours torch

prints what each function returns, or {"error": ...} where it raises, as JSON. `torch`
is the framework named, as in `import oneflow as torch`: the same source runs on both,
each in its own interpreter. Values are small integers, so that nothing is rounded.
"""

import gc
import importlib
import json
import sys
import weakref

from gradwatch.impls.backends._torchlike import as_function

# Autograd without a Function ----------------------------------------------------------


def has_exp2(torch):
    return hasattr(torch, "exp2")


def accumulation(torch):
    """The gradient of sum(x * x) after one backward, two, and one after clearing."""
    x, seen = _leaf(torch, [1, 2]), []
    for clear in (False, False, True):
        if clear:
            x.grad = None
        (x * x).sum().backward()
        seen.append(_plain(x.grad))
    return seen


def requires_grad_too_late(torch):
    x = torch.tensor([1.0, 2.0])
    y = (x * x).sum()
    x.requires_grad = True
    y.backward()


def non_scalar_without_cotangent(torch):
    x = _leaf(torch, [1, 2])
    (x * x).backward()


def non_scalar_with_cotangent(torch):
    x = _leaf(torch, [1, 2])
    (x * x).backward(torch.ones(2))
    return _plain(x.grad)


def backward_twice_without_retain_graph(torch):
    y = (_leaf(torch, [1, 2]) ** 2).sum()
    y.backward()
    y.backward()


def grad_of_an_input_not_used(torch):
    x, other = _leaf(torch, [1, 2]), _leaf(torch, [1, 2])
    return _plain(torch.autograd.grad((x * x).sum(), [x, other], allow_unused=True)[1])


def cotangent_of_a_sum_is_contiguous(torch):
    seen = []
    _identity(torch, backward=lambda ctx, dy: seen.append(dy.is_contiguous()) or dy)(
        _leaf(torch, [1, 2])
    ).sum().backward()
    return seen


# What a Function returns --------------------------------------------------------------


def one_gradient_for_each_input(torch):
    return _two_inputs(torch, lambda dy, a, b: (dy * b, dy * a))


def too_few_gradients(torch):
    return _two_inputs(torch, lambda dy, a, b: dy * b)


def none_where_no_gradient_is_due(torch):
    return _two_inputs(torch, lambda dy, a, b: (dy * b, None), second_needs_grad=False)


def none_where_a_gradient_is_due(torch):
    return _two_inputs(torch, lambda dy, a, b: (dy * b, None))


def too_many_gradients(torch):
    return _gradient_of_identity(torch, lambda ctx, dy: (dy, dy))


def a_none_too_many(torch):
    return _gradient_of_identity(torch, lambda ctx, dy: (dy, None))


def gradient_of_another_shape(torch):
    return _gradient_of_identity(torch, lambda ctx, dy: dy[:1])


def gradient_of_another_dtype(torch):
    x = _leaf(torch, [1, 2])
    _identity(torch, backward=lambda ctx, dy: dy.to(torch.float64))(x).sum().backward()
    return str(x.grad.dtype).rpartition(".")[2]


def bias_gradient_not_summed(torch):
    """(3, 2) + (2), and the cotangent returned for both."""
    x, bias = torch.ones(3, 2), _leaf(torch, [1, 2])
    add = _function(torch, lambda ctx, x, b: x + b, lambda ctx, dy: (dy, dy))
    add(x.requires_grad_(), bias).sum().backward()
    return _plain(bias.grad)


# What a Function is given -------------------------------------------------------------


def cotangents_run_backward_together(torch):
    x, seen = _leaf(torch, 1), []
    y1, y2 = _double_output(torch, seen)(x)
    torch.autograd.backward([y1, y2], [torch.ones(()), torch.ones(())])
    return {"cotangents": seen, "gradient": _plain(x.grad)}


def cotangents_run_backward_one_after_the_other(torch):
    x, seen = _leaf(torch, 1), []
    y1, y2 = _double_output(torch, seen)(x)
    y1.backward(retain_graph=True)
    y2.backward()
    return {"cotangents": seen, "gradient": _plain(x.grad)}


def cotangent_of_an_integer_output(torch):
    x, seen = _leaf(torch, [[1, 3, 2]]), []

    def forward(ctx, x):
        values, indices = x.max(1)
        ctx.mark_non_differentiable(indices)
        return values, indices

    def backward(ctx, dvalues, dindices):
        seen.append(_plain(dindices))
        return dvalues.reshape(1, 1) * torch.tensor([[0.0, 1.0, 0.0]])

    values, indices = _function(torch, forward, backward)(x)
    values.sum().backward()
    return {"dindices": seen, "needs": indices.requires_grad, "dx": _plain(x.grad)}


def accumulation_through_a_function(torch):
    """Two backward calls on one graph of y = 5 x."""
    x = _leaf(torch, [1, 2])
    y = _identity(torch, backward=lambda ctx, dy: dy * 5)(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return _plain(x.grad)


def the_same_tensor_passed_twice(torch):
    x = _leaf(torch, [2, 3])
    mul = _function(torch, _save_and_multiply, _swapped)
    mul(x, x).sum().backward()
    return _plain(x.grad)


def an_argument_that_is_no_tensor(torch):
    scale = _function(torch, lambda ctx, x, k: x * k, lambda ctx, dy: (dy * 3, None))
    return _plain(scale(_leaf(torch, [1, 2]), 3.0))


def needs_input_grad(torch):
    x, seen = _leaf(torch, [1, 2]), []

    def backward(ctx, dy):
        seen.append(list(ctx.needs_input_grad))
        return dy

    _identity(torch, backward=backward)(x).sum().backward()
    return seen


def an_attribute_of_ctx_outlives_the_forward(torch):
    """Not read in backward: if it was freed, that would be freed memory."""
    kept = []

    def forward(ctx, x):
        ctx.attribute = _Witness()
        kept.append(weakref.ref(ctx.attribute))
        return x * 1

    y = _function(torch, forward, lambda ctx, dy: dy)(_leaf(torch, [1, 2]))
    gc.collect()
    return {"alive": kept[0]() is not None, "value": _plain(y)}


# What a Function must not do ----------------------------------------------------------


def backward_writes_to_its_cotangent(torch):
    """y = G(a) + b, and G doubles dy in place: b's gradient is 1 all the same."""
    a, b = _leaf(torch, [1, 2]), _leaf(torch, [1, 2])
    doubled = _identity(torch, backward=lambda ctx, dy: dy.mul_(2))
    (doubled(a) + b).backward(torch.ones(2))
    return {"da": _plain(a.grad), "db": _plain(b.grad)}


def forward_returns_its_input(torch):
    x = _leaf(torch, [1, 2])
    same = _function(torch, lambda ctx, x: x, lambda ctx, dy: dy * 5)
    same(x).sum().backward()
    return _plain(x.grad)


# ------------------------------------------------------------------------------------


class _Witness:
    pass


def _leaf(torch, values):
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def _plain(tensor):
    return None if tensor is None else tensor.detach().numpy().tolist()


def _function(torch, forward, backward):
    methods = {"forward": forward, "backward": backward}
    return as_function(torch, type("Planted", (), methods), {}).apply


def _identity(torch, *, backward):
    return _function(torch, lambda ctx, x: x * 1, backward)


def _gradient_of_identity(torch, backward):
    x = _leaf(torch, [1, 2])
    _identity(torch, backward=backward)(x).sum().backward()
    return _plain(x.grad)


def _save_and_multiply(ctx, a, b):
    ctx.save_for_backward(a, b)
    return a * b


def _swapped(ctx, dy):
    a, b = ctx.saved_tensors
    return dy * b, dy * a


def _two_inputs(torch, rule, *, second_needs_grad=True):
    """The gradients of a * b at 2 and 3, by a rule of the cotangent, a and b."""
    a, b = _leaf(torch, [2]), torch.tensor([3.0], requires_grad=second_needs_grad)
    mul = _function(
        torch, _save_and_multiply, lambda ctx, dy: rule(dy, *ctx.saved_tensors)
    )
    mul(a, b).sum().backward()
    return [_plain(a.grad), _plain(b.grad)]


def _double_output(torch, seen):
    """The page's y1 = 2 x and y2 = x + 3, noting the cotangents that arrive."""

    def backward(ctx, dy1, dy2):
        seen.append([_plain(dy1), _plain(dy2)])
        return 2 * dy1 + dy2

    return _function(torch, lambda ctx, x: (2 * x, x + 3), backward)


def _told(behaviour, torch):
    try:
        return behaviour(torch)
    except Exception as error:  # noqa: BLE001  # whatever it raises is what it does
        return {"error": f"{type(error).__name__}: {error}"}


def _all():
    mine = (f for f in globals().values() if getattr(f, "__module__", "") == __name__)
    return [f for f in mine if not f.__name__.startswith("_")]


if __name__ == "__main__":
    door = importlib.import_module(f"gradwatch.impls.backends._{sys.argv[1]}")
    torch = getattr(door, sys.argv[1])
    json.dump({f.__name__: _told(f, torch) for f in _all()}, sys.stdout)
