"""Judges JAX's own functions, and counts the judged, refused and accused ones.

    .venv-jax/bin/python scripts/studies/lax.py [--only NAME] [--share 0/3] [--csv FILE]

JAX's wheel holds no samples, so a sample of each function is the first of `SAMPLES`
that it takes and that gives floats, in both precisions; functions that need others have
them in `MORE`. A row is a function in a precision, its own gradient against its own
forward.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import inspect
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path += map(str, (ROOT / ".venv" / "lib").glob("python*/site-packages"))  # mpmath

import jax
import jax.numpy as jnp
import jax.scipy.special
import jax.scipy.stats
import numpy as np
from jax import lax

from gradwatch.harness.check.choice import Choice
from gradwatch.harness.check.entry import Session
from gradwatch.harness.tracing import Untraceable

RNG = np.random.default_rng(0)
N, B = RNG.standard_normal((4, 4)), RNG.standard_normal((4, 4))
P, Q = np.abs(N) + 0.1, np.abs(B) + 1.1
U = 0.9 * np.tanh(N) / 2 + 0.5  # between 0 and 1
J = np.array([0, 2, 3, 2])
V, T = N[0], RNG.standard_normal((2, 6, 6, 3))
K = RNG.standard_normal((3, 3, 3, 2))
#: Sample arguments, by the number of arrays; each is tried in turn.
SAMPLES: tuple[tuple[Any, ...], ...] = (
    *((N,), (U,), (Q,), (N, B), (P, Q), (U, P), (N, V), (V, B[0])),
    *((N, B, U), (P, Q, U), (N, B, Q), ([N, B],), (N, J), (J, N), (N, 2), (2, Q)),
    *((N, 0), (N, 1, 0), (N, (1, 0)), (N, (16,)), (N, B, U, Q)),
)
MODULES = {
    "jax.lax": lax,
    "jax.numpy": jnp,
    "jax.nn": jax.nn,
    "jax.scipy.special": jax.scipy.special,
    "jax.scipy.stats.norm": jax.scipy.stats.norm,
    "jax.scipy.stats.beta": jax.scipy.stats.beta,
    "jax.scipy.stats.gamma": jax.scipy.stats.gamma,
    "jax.scipy.stats.t": jax.scipy.stats.t,
    "jax.scipy.stats.laplace": jax.scipy.stats.laplace,
    "jax.scipy.stats.logistic": jax.scipy.stats.logistic,
    "jax.numpy.linalg": jnp.linalg,
    "jax.numpy.fft": jnp.fft,
}
DIMS = ("NHWC", "HWIO", "NHWC")
MORE: dict[str, tuple[Any, ...]] = {
    "jax.lax.scan": (lambda a: lax.scan(lambda c, r: (c * r + 1, c), a[0], a), N),
    "jax.lax.fori_loop": (
        lambda a: lax.fori_loop(0, 3, lambda i, c: c * a[i], a[3]),
        N,
    ),
    "jax.lax.while_loop": (
        lambda a: lax.while_loop(lambda c: c[0] < 3, lambda c: c * 1.5, a[0]),
        Q,
    ),
    "jax.lax.map": (lambda a: lax.map(lambda r: jnp.tanh(r).sum(), a), N),
    "jax.lax.cond": (lambda a: lax.cond(a[0, 0] > 0, jnp.sin, jnp.exp, a), N),
    "jax.lax.switch": (lambda a, i: lax.switch(i[1], [jnp.sin, jnp.exp], a), N, J),
    "jax.lax.associative_scan": (
        lambda a, b: lax.associative_scan(
            lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b)
        ),
        *(U, B),
    ),
    "jax.lax.conv": (
        lambda a, k: lax.conv_general_dilated(
            a, k, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=DIMS
        ),
        *(T, K),
    ),
    "jax.lax.conv_transpose": (
        lambda a, k: lax.conv_transpose(a, k, (2, 2), "SAME"),
        T,
        K,
    ),
    "jax.lax.reduce_window max": (
        lambda a: lax.reduce_window(
            a, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        ),
        T,
    ),
    "jax.lax.reduce_window add": (
        lambda a: lax.reduce_window(
            a, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        ),
        T,
    ),
    "jax.lax.dot_general": (
        lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ()))),
        *(N, B),
    ),
    "jax.lax.dynamic_slice": (
        lambda a, i: lax.dynamic_slice(a, (i[0], i[1]), (2, 2)),
        N,
        J,
    ),
    "jax.lax.dynamic_update_slice": (
        lambda a, b, i: lax.dynamic_update_slice(a, b[:2, :2], (i[0], i[1])),
        *(N, B, J),
    ),
    "jax.lax.gather": (lambda a, i: a[i, i[::-1]], N, J),
    "jax.lax.scatter_add": (lambda a, i, b: a.at[i].add(b), N, J, B),
    "jax.lax.scatter_mul": (
        lambda a, i, b: a.at[i].multiply(b[:3], unique_indices=True),
        *(N, J[:3], B),
    ),
    "jax.lax.scatter_max": (lambda a, i, b: a.at[i].max(b), N, J, B),
    "jax.lax.scatter_min": (lambda a, i, b: a.at[i].min(b), N, J, B),
    "jax.lax.scatter": (lambda a, i, b: a.at[i[:3]].set(b[:3]), N, J, B),
    "jax.lax.sort": (lambda a, b: lax.sort((a, b), num_keys=1), N, B),
    "jax.lax.top_k": (lambda a: lax.top_k(a, 2)[0], N),
    "jax.lax.pad": (lambda a, b: lax.pad(a, b[0, 0], [(1, 2, 1), (-1, 0, 0)]), N, B),
    "jax.lax.reduce_precision": (lambda a: lax.reduce_precision(a, 8, 7), N),
    "jax.lax.integer_pow": (lambda a: lax.integer_pow(a, -3), P),
    "jax.lax.clamp": (lambda a, b: lax.clamp(-0.5, a, b + 0.0), N, Q),
    "jax.lax.select": (lambda a, b: lax.select(a > 0, a, b), N, B),
    "jax.checkpoint": (jax.checkpoint(lambda a: jnp.sin(a) * a), N),
    "jax.ops.segment_sum": (lambda a, i: jax.ops.segment_sum(a, i, 5), N, J),
    "jax.ops.segment_max": (lambda a, i: jax.ops.segment_max(a, i, 4), N, J),
    "jax.ops.segment_prod": (lambda a: jax.ops.segment_prod(a, jnp.arange(4), 4), N),
    "jax.nn.dot_product_attention": (
        lambda a: jax.nn.dot_product_attention(a, a[::-1], a, is_causal=True),
        RNG.standard_normal((2, 5, 2, 3)),
    ),
    "jax.nn.one_hot product": (
        lambda a, i: jax.nn.one_hot(i, 4, dtype=a.dtype) @ a,
        N,
        J,
    ),
    "jax.numpy.einsum": (lambda a, b: jnp.einsum("ij,kj->ik", a, b), N, B),
    "jax.numpy.quantile": (lambda a: jnp.quantile(a, 0.3, axis=1), N),
    "jax.numpy.percentile": (lambda a: jnp.percentile(a, 30.0), N),
    "jax.numpy.interp": (
        lambda a: jnp.interp(a, jnp.arange(4.0), jnp.arange(4.0) ** 2),
        P,
    ),
    "jax.numpy.take": (lambda a, i: jnp.take(a, i, axis=1), N, J),
    "jax.numpy.take_along_axis": (
        lambda a, i: jnp.take_along_axis(a, i[:, None], 1),
        *(N, J),
    ),
    "jax.numpy.where": (
        lambda a, b: jnp.where(a > b, a * b, jnp.sqrt(jnp.abs(a))),
        N,
        B,
    ),
    "jax.numpy.pad": (lambda a: jnp.pad(a, 2, mode="reflect"), N),
    "jax.numpy.roll": (lambda a: jnp.roll(a, 3, 1), N),
    "jax.numpy.tensordot": (lambda a, b: jnp.tensordot(a, b, 1), N, B),
    "jax.numpy.apply_along_axis": (
        lambda a: jnp.apply_along_axis(lambda r: jnp.tanh(r) * r.sum(), 0, a),
        N,
    ),
    "jax.random.normal product": (
        lambda a: a * jax.random.normal(jax.random.key(0), (4, 4), a.dtype),
        N,
    ),
    "jax.random.bernoulli dropout": (
        lambda a: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, (4, 4)), a, 0),
        N,
    ),
}
#: Names that are no function of numbers, or the same as another.
LEFT = frozenset(
    """
    broadcast_arrays copy_to_host_async device_put empty empty_like full_like
    save load savez array_repr array_str array_equal array_equiv allclose isclose
    fromfunction frompyfunc vectorize from_dlpack einsum_path psum pmean pmax pmin
    all_gather all_to_all ppermute pshuffle pswapaxes axis_index axis_size pcast pvary
    printoptions set_printoptions get_printoptions zeros_like ones_like create_token
    after_all infeed outfeed zeros_like_array random_gamma_grad shape_as_value
    round_ piecewise apply_over_axes fromiter fromfile fromstring frombuffer rng_uniform
    rng_bit_generator jit custom_root custom_linear_solve nextafter
    """.split()  # noqa: SIM905  # names, as a person reads them
)


def samples(only: str) -> dict[str, tuple[Any, ...]]:
    """The functions and their sample arguments, by name."""
    found = {name: row for name, row in MORE.items() if only in name}
    for home, module in MODULES.items():
        for name in sorted(dir(module)):
            function = getattr(module, name)
            full = f"{home}.{name}"
            private = (
                only not in full
                or name.startswith("_")
                or name in LEFT
                or name.endswith("_p")
            )
            if private or full in found or not callable(function):
                continue
            if inspect.isclass(function) or isinstance(function, np.dtype):
                continue
            if sample := first_sample(function):
                found[full] = (function, *sample)
    return found


def first_sample(function: Any) -> tuple[Any, ...]:
    """The first sample whose results are numbers that depend on it."""
    for sample in SAMPLES:
        leaves, tree = jax.tree.flatten(sample)
        floats = [a.astype(np.float32) for a in leaves if is_float(a)]

        def of_floats(*held: Any, leaves: Any = leaves, tree: Any = tree) -> Any:
            given = iter(held)
            full = [next(given) if is_float(a) else a for a in leaves]
            out = jax.tree.leaves(function(*tree.unflatten(full)))
            return [y for y in out if jnp.issubdtype(y.dtype, jnp.inexact)]

        with contextlib.suppress(Exception):
            if not jax.eval_shape(of_floats, *floats):
                continue
            out, back = jax.vjp(of_floats, *floats)
            slopes = back([jnp.ones_like(y) for y in out])
            sound = not any(bool(jnp.isnan(y).any()) for y in (*out, *slopes))
            if sound and any(bool((g != 0).any()) for g in slopes):
                return sample
    return ()


def is_float(value: Any) -> bool:
    """Whether a part of a sample is an array of floats."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def outcome(function: Any, sample: tuple[Any, ...], dtype: str) -> tuple[str, str]:
    """The outcome, judged, hidden, refused, accused or raises, and why."""
    kind = np.dtype(dtype).type
    given = jax.tree.map(lambda a: a.astype(kind) if is_float(a) else a, sample)
    try:
        session = Session(function, choice=Choice(quick=True), of_jax=(True, True))
        report = session.run(inputs={"given": given})
    except Untraceable as error:
        return "refused", f"{error.op} {error.why}"
    except Exception as error:  # noqa: BLE001  # a sample is not for every function
        return "raises", f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if report.failures:
        first = report.failures[0]
        what = "raises" if first.judgement.verdict == "error" else "accused"
        return what, first.story
    return ("judged", "") if report.passes else ("hidden", report.headline)


def main() -> None:
    """Judge every row; print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--share", default="0/1", help="every n-th function: k/n")
    parser.add_argument("--csv", default="")
    asked = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("ignore")
    started = time.process_time()
    rows = []
    found = samples(asked.only)
    print(f"{len(found)} functions", file=sys.stderr)
    first, step = map(int, asked.share.split("/"))
    for name, (function, *sample) in list(found.items())[first::step]:
        for dtype in ("float32", "float64"):
            what, why = outcome(function, tuple(sample), dtype)
            rows.append((name, dtype, what, why))
            print(name, dtype, what, why[:200], flush=True)
    if asked.csv:
        with open(asked.csv, "w", newline="") as file:
            csv.writer(file).writerows([("function", "dtype", "outcome", "why"), *rows])
    print("| module | rows | judged | hidden | refused | accused | raises |")
    print("|---|---|---|---|---|---|---|")
    counts = collections.defaultdict(collections.Counter)
    for name, _, what, _ in rows:
        homes = [module for module in MODULES if name.startswith(module)]
        home = max(homes, key=len, default="others")
        home = "jax.scipy.stats" if "stats" in home else home
        counts[home][what] += 1
        counts["all"][what] += 1
    kinds = ("judged", "hidden", "refused", "accused", "raises")
    for home, count in counts.items():
        told = " | ".join(str(count[kind]) for kind in kinds)
        print(f"| {home} | {count.total()} | {told} |")
    print(f"{time.process_time() - started:.0f} s of processor time", file=sys.stderr)


if __name__ == "__main__":
    main()
