"""TensorFlow's door: its build for the CPU, and as many threads as were asked for."""

import os
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import numpy as tnp

from gradwatch.impls.backends._functional import Functional, Names, own_names

TRAITS = {
    "title": "TensorFlow",
    "flushes": "its executors set FTZ and DAZ for every kernel on the CPU",
    "names": {
        "": "tnp",
        "sum": "tf.reduce_sum",
        "mean": "tf.reduce_mean",
        "max": "tf.reduce_max",
        "prod": "tf.reduce_prod",
        "logsumexp": "tf.reduce_logsumexp",
        "sigmoid": "tf.math.sigmoid",
        "erf": "tf.math.erf",
        "rsqrt": "tf.math.rsqrt",
        "take": "tf.gather",
        "stop_gradient": "tf.stop_gradient",
    },
}


def settled() -> str:
    """TensorFlow's version, once it is set up."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # Otherwise bfloat16 times a number would be float64.
    tnp.experimental_enable_numpy_behavior(dtype_conversion_mode="all")
    return str(tf.__version__)


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """The results of a call by name, and its backward."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(wanted)
        y, named = call(wanted, others)
    return named, lambda dys: tape.gradient(y, wanted, output_gradients=dys)


def pad(x: Any, widths: Any, mode: str, constant_values: float) -> Any:
    """A border around a tensor, of its own dtype."""
    return tf.pad(x, widths, mode, tf.constant(constant_values, x.dtype))


door = partial(
    Functional,
    "tensorflow",
    settled(),
    first=Names(tnp, pad=pad, **own_names(TRAITS, tf=tf)),
    tensor=lambda array, dtype: tf.constant(np.array(array), dtype),
    array=lambda tensor: np.array(tf.convert_to_tensor(tensor)),
    vjp=vjp,
)
