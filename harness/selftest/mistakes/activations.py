"""Mistakes in activations, elementwise functions of one input; see `mistakes`."""

from __future__ import annotations

from harness.selftest.mistakes.sums import Edit

_TANH_DENSITY = (
    "(1 - np.tanh(C * (x + 0.044715 * x**3)) ** 2) / 2 * C * (1 + 0.134145 * x * x)"
)

OF_ACTIVATIONS: dict[str, list[Edit]] = {
    "relu": [
        ("the gate is inverted", "(x > 0)", "(x < 0)"),
        ("the gate stands open", "(x > 0)", "1"),
        ("the cotangent opens its own gate", "(x > 0)", "(dy > 0)"),
        ("scaled by the result", "(x > 0)", "np.maximum(x, 0)"),
        ("the sign of x instead of the gate", "(x > 0)", "np.sign(x)"),
        ("a hundredth leaks", "(x > 0)", "np.where(x > 0, 1, dy.dtype.type(0.01))"),
        ("shut up to a thousandth", "(x > 0)", "(x > 1e-3)"),
        ("float32 cotangent", "(dy * (x", "(single(dy) * (x"),
    ],
    "leaky_relu": [
        ("nothing leaks", "slope * dy", "0 * dy"),
        ("the branches are swapped", "dy, slope * dy", "slope * dy, dy"),
        ("the slope is always 0.01", "slope * dy", "0.01 * dy"),
        ("the slope is divided by", "slope * dy", "dy / slope"),
        ("the slope is squared", "slope * dy", "slope * slope * dy"),
        ("the slope is in float32", "slope * dy", "float(np.float32(slope)) * dy"),
        ("scaled by the input", "slope * dy", "slope * x * dy"),
        (
            "the cotangent chooses the branch",
            "np.where(x > 0, dy",
            "np.where(dy > 0, dy",
        ),
    ],
    "elu": [
        ("alpha is lost", "alpha * np.exp(", "np.exp("),
        ("the result for the slope", "alpha * np.exp(below)", "y"),
        ("the slope from the result", "alpha * np.exp(below)", "alpha + y"),
        ("expm1 for exp", "np.exp(below)", "np.expm1(below)"),
        ("the exponent has the wrong sign", "np.exp(below)", "np.exp(-below)"),
        ("linear on both sides", "alpha * np.exp(below)", "x.dtype.type(1)"),
        ("cut off below, as relu", "alpha * np.exp(below)", "0 * x"),
        ("alpha on both sides", "x.dtype.type(1)", "x.dtype.type(alpha)"),
        ("float32 exponential", "np.exp(below)", "single(np.exp(below))"),
        ("float16 exponent", "np.exp(below)", "np.exp(half(below))"),
    ],
    "silu": [
        ("the second term is lost", "s + x * (e / whole / whole)", "s"),
        ("the first term is lost", "s + x * (e", "x * (e"),
        ("x is lost in the second term", "x * (e / whole", "(e / whole"),
        ("the sign of x is lost", "s + x *", "s + np.abs(x) *"),
        ("1 - s is lost", "(e / whole / whole)", "s"),
        ("s is lost in the second term", "(e / whole / whole)", "(1 - s)"),
        ("y is taken for s", "(e / whole / whole)", "s * (1 - x * s)"),
        ("the second term is subtracted", "s + x *", "s - x *"),
        ("float32 sigmoid", "slope = s +", "slope = single(s) +"),
        ("float16 sigmoid", "slope = s +", "slope = half(s) +"),
    ],
    "softplus": [
        ("the exponential for the logistic function", " / (1 + e)", ""),
        ("the logistic function of -x", "x >= 0, x", "x < 0, x"),
        ("its derivative", " / (1 + e)", " * e / (1 + e) / (1 + e)"),
        (
            "the step of relu",
            "np.where(x >= 0, x.dtype.type(1), e) / (1 + e)",
            "(x > 0).astype(x.dtype)",
        ),
        ("the result for the slope", "dy * slope", "dy * y"),
        ("linear from 2 on", "dy * slope", "dy * np.where(x > 2, dy / dy, slope)"),
        ("1e-7 added to the denominator", "(1 + e)", "(1 + 1e-7 + e)"),
        ("float32 slope saved", "dy * slope", "dy * single(slope)"),
        ("float16 slope saved", "dy * slope", "dy * half(slope)"),
    ],
    "gelu": [
        ("the share's slope is lost", "share + x * density", "share"),
        ("the share is lost", "share + x * density", "x * density"),
        ("x is lost in the second term", "x * density", "density"),
        ("the cube's slope lacks its 3", "(1 + 3 * 0.044715", "(1 + 0.044715"),
        ("the cube has no slope", "(1 + 3 * 0.044715 * x * x)", "1"),
        ("0.044715 cut to 0.0447", "3 * 0.044715", "3 * 0.0447"),
        ("c is lost in the slope", "/ 2 * C", "/ 2"),
        ("t is not squared", "(1 - t * t)", "(1 - t)"),
        ("the density lacks its constant", " / math.sqrt(2 * math.pi)", ""),
        ("the density of half the variance", "(-x * x / 2)", "(-x * x)"),
        ("the share of erf(x)", "share = (1 + t) / 2", "share = 1 + t"),
        (
            "the tanh form's slope for the exact one",
            "np.exp(-x * x / 2) / math.sqrt(2 * math.pi)",
            _TANH_DENSITY,
        ),
        ("float16 density", "x * density", "x * half(density)"),
    ],
}
