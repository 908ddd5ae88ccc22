"""Mistakes in losses and reductions; see `mistakes`."""

from __future__ import annotations

from harness.selftest.mistakes.sums import Edit

OF_LOSSES: dict[str, list[Edit]] = {
    "mse": [
        ("the factor 2 is lost", "dloss * 2 /", "dloss /"),
        ("the sum, not the mean", " / x.dtype.type(x.size))\n", ")\n"),
        ("the mean over the rows", "type(x.size))\n", "type(len(np.atleast_1d(x))))\n"),
        ("dtarget has the sign of dx", "return dx, -dx", "return dx, dx"),
        ("the sign of the residual", "dx = residual *", "dx = -residual *"),
        ("the size of the residual", "dx = residual *", "dx = np.abs(residual) *"),
        ("the prediction for the residual", "dx = residual *", "dx = x *"),
        ("the cotangent is forgotten", "dloss * 2", "0 * dloss + 2"),
        ("float32 residual", "dx = residual *", "dx = single(residual) *"),
        ("float16 residual", "dx = residual *", "dx = half(residual) *"),
    ],
    "huber": [
        ("outliers are not cut", "dx = cut *", "dx = r *"),
        ("the slope of the absolute value", "dx = cut *", "dx = np.sign(r) *"),
        ("delta is 1", "dx = cut *", "dx = np.clip(r, -1, 1) *"),
        ("divided by delta, as smooth L1", "dx = cut *", "dx = cut / delta *"),
        ("outliers get nothing", "dx = cut *", "dx = np.where(cut == r, r, 0) *"),
        ("the sum, not the mean", "(dloss / x.dtype.type(x.size))", "dloss"),
        ("dtarget has the sign of dx", "return dx, -dx", "return dx, dx"),
        ("the factor of a square", "dx = cut *", "dx = 2 * cut *"),
        ("float32 residual", "dx = cut *", "dx = single(cut) *"),
        ("float16 residual", "dx = cut *", "dx = half(cut) *"),
    ],
    "bce_with_logits": [
        ("the sign is that of the likelihood", "(s - target)", "(target - s)"),
        ("the target is forgotten", "(s - target)", "s"),
        ("the target is rounded", "(s - target)", "(s - np.round(target))"),
        ("the logit for the probability", "(s - target)", "(x - target)"),
        ("the slope of s once more", "(s - target)", "(s - target) * s * (1 - s)"),
        ("the sum, not the mean", "(dloss / x.dtype.type(x.size))", "dloss"),
        ("s(-x) for s(x)", "(s - target)", "(1 - s - target)"),
        ("the cotangent is forgotten", "(dloss / x", "((0 * dloss + 1) / x"),
        ("float32 probability", "(s - target)", "(single(s) - target)"),
        ("float16 probability", "(s - target)", "(half(s) - target)"),
    ],
    "kl_div": [
        ("the sign is that of the expectation", "(-dloss / rows)", "(dloss / rows)"),
        ("the mean over all elements", "(-dloss / rows)", "(-dloss / x.size)"),
        ("the sum, not the mean", "(-dloss / rows)", "-dloss"),
        ("the target is taken for uniform", "target * (-", "(target * 0 + 1) * (-"),
        (
            "the softmax of x is subtracted",
            "(target * (-",
            "((target - np.exp(x)) * (-",
        ),
        ("scaled by the logarithms", "target * (-", "target * x * (-"),
        ("the cotangent is forgotten", "-dloss", "-dloss / dloss"),
        ("float32 target", "(target * (-", "(single(target) * (-"),
        ("float16 target", "(target * (-", "(half(target) * (-"),
    ],
    "logsumexp": [
        ("the sum is forgotten", " / total),)", "),)"),
        ("the exponential of the result", "e * (", "np.exp(y) * ("),
        ("a mean in place of a softmax", "e * (", "np.ones_like(e) * ("),
        ("the maximum gets all", "e * (", "(e == 1) * total * ("),
        ("the slope of softmax", "e * (", "e * (1 - e / total) * ("),
        ("the sum is taken twice", " / total),)", " / total / total),)"),
        ("from the rounded result", "(e * (np.exp", "(np.exp(x - y) * total * (np.exp"),
        ("float32 exponentials", "e * (", "single(e) * ("),
        ("float16 exponentials", "e * (", "half(e) * ("),
    ],
    "cumsum": [
        (
            "the forward's own sum",
            "np.flip(np.cumsum(np.flip(dy, axis), axis=axis), axis)",
            "np.cumsum(dy, axis=axis)",
        ),
        (
            "the result is not turned back",
            "np.flip(np.cumsum(np.flip(dy, axis), axis=axis), axis)",
            "np.cumsum(np.flip(dy, axis), axis=axis)",
        ),
        (
            "each element is left out of its own sum",
            "axis=axis), axis),",
            "axis=axis), axis) - dy,",
        ),
        (
            "nothing is summed",
            "np.flip(np.cumsum(np.flip(dy, axis), axis=axis), axis)",
            "dy * 1",
        ),
        (
            "the sum runs along the first axis",
            "np.cumsum(np.flip(dy, axis), axis=axis)",
            "np.cumsum(np.flip(dy, axis), axis=0)",
        ),
        (
            "the whole sum for each",
            "np.cumsum(np.flip(dy, axis), axis=axis)",
            "(0 * dy + dy.sum(axis=axis, keepdims=True))",
        ),
        ("float32 cotangent", "np.flip(dy, axis)", "np.flip(single(dy), axis)"),
        ("float16 cotangent", "np.flip(dy, axis)", "np.flip(half(dy), axis)"),
    ],
    "prod": [
        (
            "divided by the element",
            "dy[..., None] * others",
            "dy[..., None] * last.prod(-1, keepdims=True) / last",
        ),
        (
            "zeros are taken for ones",
            "dy[..., None] * others",
            "dy[..., None] * last.prod(-1)[..., None] / np.where(last == 0, 1, last)",
        ),
        ("the product itself", "* others", "* last.prod(-1, keepdims=True)"),
        ("what stands before alone", "* others", "* before(last)"),
        (
            "what stands behind alone",
            "* others",
            "* before(last[..., ::-1])[..., ::-1]",
        ),
        ("the rule of a sum", "* others", "* np.ones_like(others)"),
        ("the sign is lost", "* others", "* np.abs(others)"),
        ("float32 products", "* others", "* single(others)"),
        ("float16 products", "* others", "* half(others)"),
    ],
}
