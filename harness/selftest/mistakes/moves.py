"""Mistakes in pooling, gathering, joining and gated units; see `mistakes`."""

from __future__ import annotations

from gradwatch.harness.selftest.mistakes.sums import Edit

OF_MOVES: dict[str, list[Edit]] = {
    "max_pool2d": [
        (
            "an element keeps one of its cotangents",
            "np.add.at(dx, at, dy)",
            "dx[at] = dy",
        ),
        ("the place in the window after", "dx, at, dy", "dx, (at + 1) % x.size, dy"),
        ("scaled by the maximum", "dx, at, dy", "dx, at, dy * x.reshape(-1)[at]"),
        (
            "the mean of the window, as the other pooling",
            "dx, at, dy",
            "dx, at, dy / size**2",
        ),
        (
            "what wins nothing keeps a thousandth",
            "np.zeros(x.size, x.dtype)",
            "np.ravel(x) * x.dtype.type(1e-3)",
        ),
        ("the cotangents in reverse", "dx, at, dy", "dx, at, np.flip(dy)"),
        ("float32 cotangent", "dx, at, dy", "dx, at, single(dy)"),
        ("float16 cotangent", "dx, at, dy", "dx, at, half(dy)"),
    ],
    "avg_pool2d": [
        ("the division is forgotten", " / size**2", ""),
        ("divided by the length, not the area", "size**2", "size"),
        ("divided by the stride's area", "size**2", "stride**2"),
        (
            "the padding is cut off at the end alone",
            "[:, :, p : p + x.shape[2]",
            "[:, :, 0 : x.shape[2]",
        ),
        (
            "windows do not overlap",
            "windows(spread, size, 1).sum(axis=(4, 5))",
            "windows(spread, size, 1).max(axis=(4, 5))",
        ),
        (
            "windows are one too far to the right",
            "border, border]",
            "border, (size - 2, size)]",
        ),
        ("the cotangents in reverse", "::stride] = dy", "::stride] = np.flip(dy)"),
        ("float32 cotangent", "::stride] = dy", "::stride] = single(dy)"),
        ("float16 cotangent", "::stride] = dy", "::stride] = half(dy)"),
    ],
    "group_norm": [
        (
            "the mean's term is lost",
            "dx -= dx.mean(axis=(2, 3), keepdims=True)",
            "pass",
        ),
        (
            "the mean's term is per channel",
            "dx -= dx.mean(axis=(2, 3)",
            "dx -= dx.mean(axis=3",
        ),
        (
            "the mean's term is of the whole sample",
            "dx -= dx.mean(axis=(2, 3)",
            "dx -= dx.mean(axis=(1, 2, 3)",
        ),
        ("the variance's term is lost", "dx -= h * along_h", "pass"),
        ("the variance's term has the wrong sign", "dx -= h *", "dx += h *"),
        ("the variance's term is not averaged", "(dx * h).mean(", "(dx * h).sum("),
        (
            "the variance's term is per channel",
            "(dx * h).mean(axis=(2, 3)",
            "(dx * h).mean(axis=3",
        ),
        ("eps is omitted", "+ eps)", ")"),
        ("eps is 1e-6", "+ eps)", "+ 1e-6)"),
        ("dx forgets the weight", "(dy * weight[:, None])", "(dy * 1)"),
        ("dx forgets the deviation", "dx *= rstd\n", "pass\n"),
        (
            "dbias sums the samples alone",
            "dy.sum(axis=(0, 2))",
            "dy[:, :, 0].sum(axis=0)",
        ),
        (
            "dweight is that of the first sample",
            '"bcn,bcn->c", dy,',
            '"bcn,bcn->c", dy[:1],',
        ),
        ("float32 deviation", "dx *= rstd\n", "dx *= single(rstd)\n"),
        ("float16 h", "dx -= h *", "dx -= half(h) *"),
    ],
    "where": [
        (
            "the mask is turned",
            "np.where(mask, dy, 0), np.where(mask, 0, dy)",
            "np.where(mask, 0, dy), np.where(mask, dy, 0)",
        ),
        ("both get all of it", "np.where(mask, 0, dy)", "dy * (mask == mask)"),
        (
            "both get half of it",
            "np.where(mask, dy, 0), np.where(mask, 0, dy)",
            "dy / 2, dy / 2",
        ),
        ("b gets nothing", "np.where(mask, 0, dy)", "0 * dy"),
        (
            "b gets it with the other sign",
            "np.where(mask, 0, dy)",
            "np.where(mask, 0, -dy)",
        ),
        ("da takes the first of the copies", "sum_to(da", "first_to(da"),
        ("db is not summed over the copies", "sum_to(db, b.shape)", "db"),
        ("scaled by the choice", "np.where(mask, dy, 0)", "np.where(mask, dy * a, 0)"),
        ("float16 cotangent", "np.where(mask, dy, 0)", "np.where(mask, half(dy), 0)"),
    ],
    "gather": [
        (
            "what is picked twice keeps one cotangent",
            "np.add.at(dx, flat, dy)",
            "dx[flat] = dy",
        ),
        ("off by one index", "dx, flat, dy", "dx, (flat + 1) % x.size, dy"),
        (
            "the first of the axis",
            "dx, flat, dy",
            "dx, np.take_along_axis(numbers, 0 * index, axis), dy",
        ),
        ("the cotangents in reverse", "dx, flat, dy", "dx, flat, np.flip(dy)"),
        ("scaled by the element", "dx, flat, dy", "dx, flat, dy * x.reshape(-1)[flat]"),
        (
            "a mean of what comes twice",
            "return (dx.reshape",
            "dx /= 1 + (np.bincount(np.ravel(flat), None, x.size) > 1)\n        "
            "return (dx.reshape",
        ),
        ("float32 cotangent", "dx, flat, dy", "dx, flat, single(dy)"),
        ("float16 cotangent", "dx, flat, dy", "dx, flat, half(dy)"),
    ],
    "concat": [
        ("cut at the length of b", "[a.shape[axis]]", "[b.shape[axis]]"),
        (
            "the parts are swapped",
            "[a.shape[axis]], axis=axis)",
            "[a.shape[axis]], axis=axis)[::-1]",
        ),
        ("cut one too early", "[a.shape[axis]]", "[a.shape[axis] - 1]"),
        (
            "cut along the first axis",
            "[a.shape[axis]], axis=axis",
            "[a.shape[axis]], axis=0",
        ),
        (
            "a gets the first part twice",
            "tuple(np.split(dy, ",
            "tuple(2 * g for g in np.split(dy, ",
        ),
        ("cut from the end", "np.split(dy,", "np.split(np.flip(dy, axis),"),
        ("float16 cotangent", "np.split(dy,", "np.split(half(dy),"),
    ],
    "glu": [
        ("the gate's slope lacks 1 - s", "(e / whole / whole)", "s"),
        ("the gate's slope lacks s", "(e / whole / whole)", "(1 - s)"),
        ("db forgets a", "dy * a * (e", "dy * (e"),
        ("da forgets the gate", "da, db = dy * s,", "da, db = dy * 1,"),
        ("da is gated by the other sign", "da, db = dy * s,", "da, db = dy * (1 - s),"),
        ("the halves are swapped", "((da, db)", "((db, da)"),
        ("the gate gets nothing", "((da, db)", "((da, 0 * db)"),
        (
            "the halves are joined along the last axis",
            "db), axis=axis),)",
            "db), axis=-1),)",
        ),
        ("float32 gate", "da, db = dy * s,", "da, db = dy * single(s),"),
        ("float16 gate", "da, db = dy * s,", "da, db = dy * half(s),"),
    ],
    "swiglu": [
        ("the slope lacks its second term", "s + gate * (e / whole / whole)", "s"),
        ("the slope lacks its first term", "s + gate * (e", "gate * (e"),
        ("dgate forgets up", "dy * up * slope", "dy * slope"),
        ("dup takes the gate before silu", "dy * silu)", "dy * gate)"),
        ("dup takes s alone", "dy * silu)", "dy * s)"),
        (
            "gate and up are swapped",
            "(dy * up * slope, dy * silu)",
            "(dy * silu, dy * up * slope)",
        ),
        ("the second term lacks gate", "s + gate * (e", "s + (e"),
        ("the slope at up", "up * slope", "up * (s + up * (e / whole / whole))"),
        ("float32 sigmoid", "slope = s +", "slope = single(s) +"),
        ("float16 silu", "dy * silu)", "dy * half(silu))"),
    ],
}
