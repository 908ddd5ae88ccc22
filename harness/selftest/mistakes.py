"""Mistakes that people make in backwards, as edits of the textbook's.

Here are those of ops that work on each element, and `EDITS`, which has all; those of
matrix products, norms, softmax and selection are in `mistakes_of_sums`, the others in
modules beside these two.

`EDITS[op]` lists (what is wrong, a fragment of harness/selftest/textbook.py, what
stands there instead); of an op that is not in the textbook, the fragment is of the
`manual` dialect on its page. A fragment occurs exactly once in its function. A
replacement may also use `first_to` (the first of the copies where `sum_to` sums them),
`single` and `half` (through float32 and float16).

Where they come from: the errors of the notes that the project grew out of, reports of
wrong custom Functions, and what a hand slips on: a term, a sign, a factor, an axis, a
count, a transposition, an index, a precision.
"""

from __future__ import annotations

from harness.selftest.mistakes_of_activations import OF_ACTIVATIONS
from harness.selftest.mistakes_of_layers import OF_LAYERS
from harness.selftest.mistakes_of_losses import OF_LOSSES
from harness.selftest.mistakes_of_moves import OF_MOVES
from harness.selftest.mistakes_of_sums import OF_SUMS, Edit

OF_ELEMENTS: dict[str, list[Edit]] = {
    "add": [
        ("db has the sign of a difference", "sum_to(dy, b.", "sum_to(-dy, b."),
        ("db is not summed over the copies", "sum_to(dy, b.shape)", "dy"),
        ("da takes the first of the copies", "sum_to(dy, a.", "first_to(dy, a."),
        (
            "db is the mean over the copies",
            "sum_to(dy, b.shape)",
            "sum_to(dy, b.shape) * (b.size / dy.size)",
        ),
        (
            "da forgets the copied axes of length 1",
            "sum_to(dy, a.shape)",
            "dy.sum(tuple(range(dy.ndim - a.ndim)))",
        ),
        ("da is that of a product", "sum_to(dy, a.", "sum_to(dy * b, a."),
    ],
    "mul": [
        ("da scales by a, not b", "dy * b", "dy * a"),
        ("db scales by b, not a", "dy * a", "dy * b"),
        ("db forgets its factor", "sum_to(dy * a", "sum_to(0 * a + dy"),
        ("da is not summed over the copies", "sum_to(dy * b, a.shape)", "dy * b"),
        ("db takes the first of the copies", "sum_to(dy * a", "first_to(dy * a"),
        (
            "db is the mean over the copies",
            "sum_to(dy * a, b.shape)",
            "sum_to(dy * a, b.shape) * (b.size / dy.size)",
        ),
        (
            "da sums the cotangent before it is scaled",
            "sum_to(dy * b, a.shape)",
            "sum_to(dy, a.shape) * b.mean()",
        ),
        ("db scales by the size of a", "dy * a", "dy * np.abs(a)"),
        ("float32 factor in da", "dy * b", "dy * single(b)"),
        ("float16 factor in db", "dy * a", "dy * half(a)"),
    ],
    "maximum": [
        ("the smaller input wins", "a > b, a >= b", "b > a, b >= a"),
        ("both inputs get all of it", "dy - da", "dy"),
        ("both inputs get half of it", "a > b, a >= b", "a == a, a != a"),
        ("a wins if it is larger in size", "a > b, a >=", "abs(a) > abs(b), abs(a) >="),
        ("a tie gives both all of it", "dy - da", "dy * (b >= a)"),
        ("a tie loses half of it", "dy - da", "dy * (a < b)"),
        (
            "inputs within a thousandth are taken for a tie",
            "a > b, a >= b",
            "a > b + 1e-3, a >= b - 1e-3",
        ),
        ("the loser gets a hundredth", "da *= 0.5", "da *= 0.495"),
        ("da takes the first of the copies", "sum_to(da", "first_to(da"),
        ("db is not summed over the copies", "sum_to(dy - da, b.shape)", "dy - da"),
        (
            "compared in float16",
            "a > b, a >= b",
            "half(a) > half(b), half(a) >= half(b)",
        ),
    ],
    "exp2": [
        ("ln 2 is missing", "dx *= ln2", "dx *= 1"),
        ("ln 2 is divided by", "dx *= ln2", "dx /= ln2"),
        ("log10 for ln", "math.log(2)", "math.log10(2)"),
        ("ln 2 cut to 0.69", "math.log(2)", "0.69"),
        ("ln 2 cut to 0.6931", "math.log(2)", "0.6931"),
        ("ln 2 cut to 0.693147", "math.log(2)", "0.693147"),
        ("ln 2 in float32", "math.log(2)", "np.float32(math.log(2))"),
        ("the input is saved for the result", "dy * y", "dy * x"),
        ("the rule of a power: x * 2**(x - 1)", "dy * y", "dy * x * y / 2"),
        ("the exponent is one too small", "dy * y", "dy * y / 2"),
        ("float32 result saved", "dy * y", "dy * single(y)"),
        ("float16 exponent", "dy * y", "dy * np.exp2(half(x))"),
    ],
    "square": [
        ("overwritten instead of accumulated", "dx += dx", "pass"),
        ("accumulated twice too often", "dx += dx", "dx *= 4"),
        ("the result is saved for the input", "dy * x", "dy * y"),
        ("the sign of x is lost", "dy * x", "dy * np.abs(x)"),
        ("x is lost", "dy * x", "dy * 1"),
        ("the cotangent is used twice", "dy * x", "dy * dy * x"),
        ("x is recovered from the result", "dy * x", "dy * np.sqrt(y)"),
        ("float32 input saved", "dy * x", "dy * single(x)"),
        ("float16 input saved", "dy * x", "dy * half(x)"),
    ],
    "sigmoid": [
        ("one factor s is lost", "dx /= whole", "pass"),
        ("both factors are e", "dx = e / whole", "dx = e * e / whole"),
        ("1 + y for 1 - y", "dx = e / whole\n        dx /= whole", "dx = y * (1 + y)"),
        ("the slope of tanh", "dx = e / whole\n        dx /= whole", "dx = 1 - y * y"),
        (
            "the input is saved for the result",
            "dx = e / whole\n        dx /= whole",
            "dx = x * (1 - x)",
        ),
        (
            "y is lost",
            "dx = e / whole\n        dx /= whole",
            "dx = 1 - y",
        ),
        ("the slope at 0 everywhere", "dx *= dy", "dx = dy * (0.25 + 0 * e)"),
        ("zero beyond |x| = 10", "dx *= dy", "dx *= dy * (np.abs(x) <= 10)"),
        ("1e-7 added to the denominator", "dx = e / whole", "dx = e / (whole + 1e-7)"),
        ("float32 exponential", "dx = e / whole", "dx = single(e) / whole"),
        ("float16 exponential", "dx = e / whole", "dx = half(e) / whole"),
    ],
    "sum_product": [
        ("dc lacks b", "dy * q", "dy * a"),
        ("dc is scaled by the result", "dy * q", "dy * (q * c)"),
        ("dq forgets c", "sum_to(dy * c, q", "sum_to(dy, q"),
        ("b gets nothing", "sum_to(dq, b", "sum_to(0 * dq, b"),
        ("db has the sign of a difference", "sum_to(dq, b", "sum_to(-dq, b"),
        ("db takes the first of the copies", "sum_to(dq, b", "first_to(dq, b"),
        ("dc takes the first of the copies", "sum_to(dy * q", "first_to(dy * q"),
        ("dq takes the first of the copies", "sum_to(dy * c", "first_to(dy * c"),
        ("db is not summed over the copies", "sum_to(dq, b.shape)", "dq"),
        ("da and db halve the cotangent", "dy * c", "dy * c / 2"),
        ("float32 factor in dq", "dy * c", "dy * single(c)"),
        ("float16 sum saved", "dy * q", "dy * half(q)"),
    ],
    "affine_pair": [
        ("4.3 is lost in the backward", "dy * factor", "dy * x1"),
        ("only 4.3 is left", "dy * factor", "dy * (0 * x1 + 4.3)"),
        ("4.3 cut to 4", "dy * factor", "dy * (x1 + 4)"),
        ("4.3 in float32", "dy * factor", "dy * (x1 + float(np.float32(4.3)))"),
        ("4.3 in float16", "dy * factor", "dy * (x1 + float(np.float16(4.3)))"),
        ("4.3 has the wrong sign", "dy * factor", "dy * (x1 - 4.3)"),
        ("the constant 30 is in the slope", "dy * factor", "dy * (factor + 30)"),
        ("dx1 and dx2 are swapped", "dy * x2, dy * factor", "dy * factor, dy * x2"),
        ("dx1 counts both terms", "dy * x2", "dy * x2 + 4.3 * dy"),
        ("float32 factor in dx1", "dy * x2", "dy * single(x2)"),
    ],
    "neuron": [
        ("the bias gets nothing", "dq * inside", "dq * inside * (inside != 1)"),
        ("dx is off by one index", "dq * w[:2]", "dq * w[1:]"),
        ("dx is in reverse order", "dq * w[:2]", "dq * w[1::-1]"),
        ("dw scales by w", "dq * inside", "dq * w"),
        ("1 - y is lost", "dy * y * (1 - y)", "dy * y"),
        ("y is lost", "dy * y * (1 - y)", "dy * (1 - y)"),
        ("1 + y for 1 - y", "dy * y * (1 - y)", "dy * y * (1 + y)"),
        ("q is saved for y", "dy * y * (1 - y)", "dy * q * (1 - q)"),
        ("the activation is skipped", "dy * y * (1 - y)", "dy * 1"),
        ("float32 activation", "dy * y * (1 - y)", "dy * single(y * (1 - y))"),
        ("float16 weights in dx", "dq * w[:2]", "dq * half(w[:2])"),
    ],
    "sigmoid_ratio": [
        ("the quotient rule adds", "dd = -dnumerator * f", "dd = dnumerator * f"),
        ("dd lacks f", "dd = -dnumerator * f", "dd = -dnumerator"),
        ("1 / d is taken twice", "dnumerator = df / d", "dnumerator = df / d / d"),
        ("the factor 2 of the square is lost", "2 * total", "total"),
        ("x - y for x + y", "2 * total * dd", "2 * (x - y) * dd"),
        ("dx loses the square's path", "of_x) * dd + dtotal", "of_x) * dd"),
        ("dx loses the numerator's path", "dx = dnumerator +", "dx ="),
        ("dx is overwritten by the last path", "+ of_x * (1 - of_x) * dd", "* 0"),
        ("dy loses the square's path", "* dnumerator + dtotal", "* dnumerator"),
        ("dy takes the slope at x", "of_y * (1 - of_y)", "of_x * (1 - of_x)"),
        ("dy's slope lacks 1 - s", "of_y * (1 - of_y)", "of_y"),
        ("float32 denominator", "dnumerator = df / d", "dnumerator = df / single(d)"),
        ("float16 result saved", "-dnumerator * f", "-dnumerator * half(f)"),
    ],
    "nested_trig": [
        ("the sine of the cosine's slope is positive", "* -np.sin(f2)", "* np.sin(f2)"),
        ("the cosine stays a cosine", "-np.sin(f2)", "-np.cos(f2)"),
        ("the sine stays a sine", "np.cos(f0)", "np.sin(f0)"),
        ("the exponential's slope is its input", "dh2 * h2", "dh2 * f1"),
        ("the exponential's slope is 1", "dh2 * h2", "dh2 * 1"),
        ("the factor 2 of the square is lost", "dloss * 2 *", "dloss *"),
        ("dy has the sign of df3", "-df3, df0", "df3, df0"),
        ("the loss forgets y", "2 * (f3 - y)", "2 * f3"),
        ("dh3 takes w2", "df3 * w3", "df3 * w2"),
        ("dw1 takes the value before the sine", "df1 * h1", "df1 * f0"),
        ("dw2 takes the layer after", "df2 * h2, df3", "df2 * h3, df3"),
        ("dx forgets w0", "return df0 * w0", "return df0"),
        (
            "db1 and db2 are swapped",
            "df0, df1, df2, df3, dw0",
            "df0, df2, df1, df3, dw0",
        ),
        ("float32 sine", "-np.sin(f2)", "-single(np.sin(f2))"),
        ("float16 exponential saved", "dh2 * h2", "dh2 * half(h2)"),
    ],
    "double_output": [
        ("the factor 2 is lost", "2 * dy1", "1 * dy1"),
        ("the second output is forgotten", "dx += dy2", "pass"),
        ("overwritten instead of accumulated", "dx += dy2", "dx = dy2 + 0"),
        (
            "the cotangents are swapped",
            "2 * dy1\n        dx += dy2",
            "2 * dy2\n        dx += dy1",
        ),
        ("the constant 3 is in the slope", "dx += dy2", "dx += 3 * dy2"),
        ("the outputs are subtracted", "dx += dy2", "dx -= dy2"),
        ("both outputs count twice", "dx += dy2", "dx += 2 * dy2"),
        ("float32 cotangent", "dx += dy2", "dx += single(dy2)"),
    ],
}

EDITS = OF_ELEMENTS | OF_SUMS | OF_ACTIVATIONS | OF_LAYERS | OF_LOSSES | OF_MOVES
