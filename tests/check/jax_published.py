"""Twenty functions as published code in JAX has them, in our own words.

Losses as in optax, layers as in flax, attention, recurrences, a kernel of Pallas.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

RNG = np.random.default_rng(7)


def made(*shapes):
    """Arrays of ordinary numbers."""
    return [jnp.asarray(RNG.standard_normal(s), jnp.float32) for s in shapes]


def cosine_distance(a, b, eps=1e-6):
    norm = functools.partial(jnp.linalg.norm, axis=-1, keepdims=True)
    a, b = a / jnp.maximum(norm(a), eps), b / jnp.maximum(norm(b), eps)
    return 1.0 - jnp.sum(a * b, -1)


def huber_loss(p, t, delta=1.0):
    error = jnp.abs(p - t)
    within = jnp.minimum(error, delta)
    return 0.5 * within**2 + delta * (error - within)


def smooth_labels_cross_entropy(logits, alpha=0.1):
    labels = jax.nn.one_hot(jnp.array([0, 2, 1]), logits.shape[-1], dtype=logits.dtype)
    labels = (1 - alpha) * labels + alpha / logits.shape[-1]
    return -jnp.sum(labels * jax.nn.log_softmax(logits), -1)


def integer_cross_entropy(logits, labels):
    normaliser = jax.nn.logsumexp(logits, -1)
    picked = jnp.take_along_axis(logits, labels[:, None], -1, mode="clip")[:, 0]
    return normaliser - picked


def sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2.0):
    p = jax.nn.sigmoid(logits)
    entropy = jnp.maximum(logits, 0) - logits * targets
    entropy += jnp.log1p(jnp.exp(-jnp.abs(logits)))
    hit = p * targets + (1 - p) * (1 - targets)
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return weight * (1 - hit) ** gamma * entropy


def kl_divergence(log_p, targets):
    safe = jnp.where(targets > 0, targets, 1.0)
    return jnp.sum(jnp.where(targets > 0, targets * (jnp.log(safe) - log_p), 0.0), -1)


def ntxent(x, temperature=0.5):
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    near = x @ x.T / temperature
    near = jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, near)
    pairs = near[jnp.arange(len(x)), (jnp.arange(len(x)) + 1) % len(x)]
    return jnp.mean(jax.nn.logsumexp(near, -1) - pairs)


def layer_norm(x, scale, bias, eps=1e-6):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, (x * x).mean(-1, keepdims=True) - mean * mean)
    return (x - mean) * (lax.rsqrt(variance + eps) * scale) + bias


def rms_norm(x, scale, eps=1e-6):
    return x * lax.rsqrt(jnp.mean(lax.square(x), -1, keepdims=True) + eps) * scale


def group_norm(x, scale, eps=1e-6):
    held = x.reshape(x.shape[0], -1, 2, x.shape[-1] // 2)
    mean, var = held.mean((1, 3), keepdims=True), held.var((1, 3), keepdims=True)
    return ((held - mean) * lax.rsqrt(var + eps)).reshape(x.shape) * scale


def gated_mlp(x, w, v, out):
    return (jax.nn.silu(x @ w) * (x @ v)) @ out


def conv_block(x, kernel, bias):
    y = lax.conv_general_dilated(
        x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.gelu(y + bias)


def batch_norm(x, scale, bias, eps=1e-5):
    mean, var = x.mean(0), x.var(0)
    return (x - mean) / jnp.sqrt(var + eps) * scale + bias


def lstm_cell(carry, x, w, u):
    hidden, cell = carry[0], carry[1]
    i, f, g, o = jnp.split(x @ w + hidden @ u, 4, -1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def gru(xs, w, u):
    def step(h, x):
        z, r, n = jnp.split(x @ w, 3, -1)
        hz, hr, hn = jnp.split(h @ u, 3, -1)
        z, r = jax.nn.sigmoid(z + hz), jax.nn.sigmoid(r + hr)
        h = (1 - z) * jnp.tanh(n + r * hn) + z * h
        return h, h

    return lax.scan(step, jnp.zeros(u.shape[0], xs.dtype), xs)[1]


def causal_attention(q, k, v):
    near = jnp.einsum("hqd,hkd->hqk", q, k) / jnp.sqrt(q.shape[-1]).astype(q.dtype)
    mask = jnp.tril(jnp.ones(near.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(mask, near, -jnp.inf), -1) @ v


def rotary(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[0])[:, None] / 100.0 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    a, b = x[:, :half], x[:, half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def selective_scan(x, delta, a, b, c):
    delta = jax.nn.softplus(delta)
    decay = jnp.exp(delta[..., None] * -jnp.exp(a))
    drive = (delta * x)[..., None] * b[:, None, :]

    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    _, states = lax.associative_scan(combine, (decay, drive))
    return jnp.einsum("tdn,tn->td", states, c)


def flash_attention(q, k, v, block=2):
    """A row of blocks at a time, with the running maximum and sum."""
    scale = 1 / np.sqrt(q.shape[-1])

    def step(carry, rows):
        top, total, out = carry
        keys, values = rows
        near = q @ keys.T * scale
        new = jnp.maximum(top, near.max(-1))
        part = jnp.exp(near - new[:, None])
        kept = jnp.exp(top - new)
        total = total * kept + part.sum(-1)
        return (new, total, out * kept[:, None] + part @ values), None

    rows = (k.reshape(-1, block, k.shape[-1]), v.reshape(-1, block, v.shape[-1]))
    none = jnp.zeros(len(q), q.dtype)
    start = (none - jnp.inf, none, jnp.zeros_like(v[: len(q)]))
    (_, total, out), _ = lax.scan(step, start, rows)
    return out / total[:, None]


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / np.sqrt(q.shape[-1]), -1) @ v


def _kernel(q_ref, k_ref, v_ref, o_ref):
    near = q_ref[...] @ k_ref[...].T / np.sqrt(q_ref.shape[-1])
    part = jnp.exp(near - near.max(-1, keepdims=True))
    o_ref[...] = part / part.sum(-1, keepdims=True) @ v_ref[...]


@jax.custom_vjp
def pallas_attention(q, k, v):
    out = jax.ShapeDtypeStruct((q.shape[0], v.shape[1]), q.dtype)
    return pl.pallas_call(_kernel, out_shape=out, interpret=True)(q, k, v)


def _backward(kept, dy):
    q, k, v = kept
    scale = 1 / np.sqrt(q.shape[-1])
    p = jax.nn.softmax(q @ k.T * scale, -1)
    dp = dy @ v.T
    ds = p * (dp - jnp.sum(dp * p, -1, keepdims=True)) * scale
    return ds @ k, ds.T @ q, p.T @ dy


pallas_attention.defvjp(lambda *given: (pallas_attention(*given), given), _backward)

LABELS = jnp.array([0, 2, 1])
#: The definition, what is judged against it, and the arrays.
FUNCTIONS = {
    "cosine_distance": (cosine_distance, None, made((3, 4), (3, 4))),
    "huber_loss": (huber_loss, None, made((3, 4), (3, 4))),
    "smooth_labels": (smooth_labels_cross_entropy, None, made((3, 5))),
    "integer_cross_entropy": (integer_cross_entropy, None, [*made((3, 5)), LABELS]),
    "sigmoid_focal_loss": (sigmoid_focal_loss, None, made((3, 4), (3, 4))),
    "kl_divergence": (
        kl_divergence,
        None,
        [*made((3, 4)), jax.nn.softmax(made((3, 4))[0])],
    ),
    "ntxent": (ntxent, None, made((4, 5))),
    "layer_norm": (layer_norm, None, made((3, 8), (8,), (8,))),
    "rms_norm": (rms_norm, None, made((3, 8), (8,))),
    "group_norm": (group_norm, None, made((2, 3, 4), (4,))),
    "gated_mlp": (gated_mlp, None, made((3, 4), (4, 6), (4, 6), (6, 4))),
    "conv_block": (conv_block, None, made((1, 5, 5, 2), (3, 3, 2, 3), (3,))),
    "batch_norm": (batch_norm, None, made((6, 4), (4,), (4,))),
    "lstm_cell": (lstm_cell, None, made((2, 3, 4), (3, 5), (5, 16), (4, 16))),
    "gru": (gru, None, made((4, 3), (3, 12), (4, 12))),
    "causal_attention": (causal_attention, None, made((2, 5, 4), (2, 5, 4), (2, 5, 4))),
    "rotary": (rotary, None, made((5, 6))),
    "selective_scan": (
        selective_scan,
        None,
        made((5, 3), (5, 3), (3, 2), (5, 2), (5, 2)),
    ),
    "flash_attention": (attention, flash_attention, made((4, 4), (4, 4), (4, 4))),
    "pallas_attention": (attention, pallas_attention, made((4, 4), (4, 4), (4, 4))),
}

#: Mistakes in one gradient.
MISTAKES = {
    "a factor": lambda g: g * 1.001,
    "the sign": lambda g: -g,
    "zeros": jnp.zeros_like,
    "a missing row": lambda g: g.at[0].set(0),
    "a shift": lambda g: jnp.roll(g, 1),
    "half of a row": lambda g: g.at[0].multiply(0.5),
}


def planted(function, given, place, mistake):
    """The function with a mistake in its gradient by one of the arrays."""
    floats = [i for i, a in enumerate(given) if a.dtype.kind == "f"]

    @jax.jit  # one program in place of one for each step
    def gradients(given, dy):
        def plain(*ws):
            pairs = dict(zip(floats, ws, strict=True))
            return function(*(pairs.get(i, a) for i, a in enumerate(given)))

        return jax.vjp(plain, *(given[i] for i in floats))[1](dy)

    def backward(given, dy):
        found = dict(zip(floats, gradients(given, dy), strict=True))
        found[place] = mistake(found[place])
        return tuple(found.get(i) for i in range(len(given)))

    wrong = jax.custom_vjp(function)
    wrong.defvjp(lambda *given: (function(*given), given), backward)
    return wrong
