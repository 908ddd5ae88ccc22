"""Mistakes in norms, attention, convolution, embedding, losses; see `mistakes`."""

from __future__ import annotations

from harness.selftest.mistakes.sums import Edit

OF_LAYERS: dict[str, list[Edit]] = {
    "rms_norm": [
        ("eps is omitted", "/ n + eps)", "/ n)"),
        ("eps is 1e-5", "/ n + eps)", "/ n + 1e-5)"),
        (
            "eps is added to the root, not under it",
            'np.sqrt(np.einsum("ri,ri->r", h, h)[:, None] / n + eps)',
            '(np.sqrt(np.einsum("ri,ri->r", h, h)[:, None] / n) + eps)',
        ),
        (
            "the root's term is lost",
            'dx -= h * (np.einsum("ri,ri->r", dx, h)[:, None] / n)',
            "pass",
        ),
        ("the root's term has the wrong sign", "dx -= h *", "dx += h *"),
        ("the root's term is not averaged", "dx, h)[:, None] / n", "dx, h)[:, None]"),
        (
            "the root's term forgets the weight",
            '"ri,ri->r", dx, h',
            '"ri,ri->r", dy, h',
        ),
        ("the root's term takes x for h", "dx -= h *", "dx -= x.reshape(rows, n) *"),
        (
            "a mean is taken off, as in layer_norm",
            "dx *= r\n",
            "dx -= dx.mean(axis=1, keepdims=True)\n        dx *= r\n",
        ),
        ("dx forgets the root", "dx *= r\n", "pass\n"),
        ("dx forgets the weight", "dx = dy * weight.reshape(n)", "dx = dy * 1"),
        ("dweight takes x for h", '->i", dy, h', '->i", dy, x.reshape(rows, n)'),
        ("dweight is the mean over the rows", '->i", dy, h)', '->i", dy, h) / rows'),
        (
            "dweight is overwritten by the last row",
            '->i", dy, h',
            '->i", dy[-1:], h[-1:]',
        ),
        ("float32 root", "dx *= r\n", "dx *= single(r)\n"),
        ("float16 h", "dx -= h *", "dx -= half(h) *"),
    ],
    "embedding": [
        (
            "a repeated row gets its last cotangent alone",
            "np.add.at(dweight, index, dy)",
            "dweight[index] += dy",
        ),
        (
            "a repeated row gets the mean",
            "np.add.at(dweight, index, dy)",
            "np.add.at(dweight, index, dy)\n        counts = np.bincount("
            "np.ravel(index), minlength=len(weight))\n"
            "        dweight /= np.maximum(counts, 1)[:, None]",
        ),
        ("the padding row learns", "dweight[padding] = 0", "pass"),
        ("the row after padding is spared", "[padding] = 0", "[padding + 1] = 0"),
        ("row 0 is always padding", "if padding is not None", "if dweight[:1].size"),
        ("rows are off by one", "index, dy)", "index - 1, dy)"),
        ("the cotangents in reverse", "index, dy)", "index, np.flip(dy))"),
        ("scaled by the row", "index, dy)", "index, dy * weight[index])"),
        ("float32 cotangents", "index, dy)", "index, single(dy))"),
        ("float16 cotangents", "index, dy)", "index, half(dy))"),
    ],
    "attention": [
        ("ds is not scaled", "ds *= scale\n", "pass\n"),
        ("ds is scaled twice", "ds *= scale\n", "ds *= scale * scale\n"),
        (
            "softmax's sum is lost",
            'ds -= np.einsum("...ls,...ls->...l", ds, p)[..., None]',
            "pass",
        ),
        ("softmax's sum is added", "ds -= np", "ds += np"),
        ("softmax's sum is not weighted", "ds, p)[", "ds, p * 0 + 1)["),
        (
            "softmax's sum runs along the queries",
            'np.einsum("...ls,...ls->...l", ds, p)[..., None]',
            "(ds * p).sum(axis=-2, keepdims=True)",
        ),
        ("p is lost in ds", "ds *= p\n", "pass\n"),
        ("dv takes ds for p", "(p, dy)", "(ds, dy)"),
        ("dk takes p for ds", "(ds, q)", "(p, q)"),
        ("dq takes p for ds", "return ds @ k", "return p @ k"),
        ("float32 p", "ds *= p\n", "ds *= single(p)\n"),
        ("float16 p", "ds *= p\n", "ds *= half(p)\n"),
    ],
    "masked_attention": [
        ("dq is not scaled", "ds @ k * scale", "ds @ k"),
        ("dk is scaled twice", "-2) @ q", "-2) @ q * scale"),
        ("the visible keys are hidden", "np.where(mask, ds", "np.where(~mask, ds"),
        ("softmax's sum is lost", "ds -= p * ds.sum(axis=-1, keepdims=True)", "pass"),
        ("softmax's sum runs along the queries", "ds.sum(axis=-1", "ds.sum(axis=-2"),
        ("softmax's sum is a mean", "ds.sum(axis=-1", "ds.mean(axis=-1"),
        ("softmax's sum forgets p", "ds -= p * ds", "ds -= ds"),
        (
            "hidden keys are in the sum",
            "ds -= p * ds.sum(axis=-1, keepdims=True)",
            "ds -= p * (dy @ np.swapaxes(v, -1, -2)).sum(axis=-1, keepdims=True)",
        ),
        ("dv takes ds for p", "np.swapaxes(p,", "np.swapaxes(ds,"),
        ("float32 p", "ds = p *", "ds = single(p) *"),
        ("float16 p", "ds = p *", "ds = half(p) *"),
    ],
    "conv2d": [
        ("the kernel is not turned", "weight[:, :, ::-1, ::-1]", "weight"),
        ("the kernel is turned along one axis", "::-1, ::-1]", "::-1]"),
        ("the padding is cut off at the end alone", "[:, :, p : p +", "[:, :, 0 :"),
        (
            "dweight comes out turned",
            "axes=((0, 2, 3), (0, 2, 3)))",
            "axes=((0, 2, 3), (0, 2, 3)))[:, :, ::-1, ::-1]",
        ),
        (
            "dweight lacks the last row",
            "(dy, seen,",
            "(dy[:, :, :-1], seen[:, :, :-1],",
        ),
        ("dweight is the mean over the batch", "(dy, seen,", "(dy / len(x), seen,"),
        ("dweight takes the first of the batch", "(dy, seen,", "(dy[:1], seen[:1],"),
        ("dbias is a mean", "dy.sum(axis=(0, 2, 3))", "dy.mean(axis=(0, 2, 3))"),
        (
            "dbias sums the batch alone",
            "dy.sum(axis=(0, 2, 3))",
            "dy[:, :, 0, 0].sum(axis=0)",
        ),
        ("float32 kernel in dx", "turned = weight", "turned = single(weight)"),
        ("float16 x in dweight", "(dy, seen,", "(dy, half(seen),"),
    ],
    "cross_entropy": [
        ("the mean counts what is ignored", "dloss / n", "dloss / counts.size"),
        ("the sum, not the mean", "dloss / n", "dloss"),
        (
            "what is ignored gets a gradient",
            "np.where(counts, dloss / n, 0)",
            "dloss / n",
        ),
        ("the target is forgotten", "- (1 - s)", "- 0 * s"),
        ("the target is not smoothed", "- (1 - s)", "- 1"),
        ("the other classes are not smoothed", "x.dtype.type(s /", "0 * (s /"),
        ("smoothed over C - 1 classes", "(s / x.shape[1])", "(s / (x.shape[1] - 1))"),
        ("the sign is that of the likelihood", "dx *= np", "dx *= -np"),
        ("the class after the target", "dx, place, at", "dx, place - 1, at"),
        ("the cotangent is forgotten", "dloss / n", "1 / n"),
        ("the slope of softmax's own entropy", "dx = softmax -", "dx = z -"),
        ("float32 softmax", "dx = softmax -", "dx = single(softmax) -"),
        ("float16 softmax", "dx = softmax -", "dx = half(softmax) -"),
    ],
}
