"""TensorFlow: its own calls, which the pages name, differentiated by its tape."""

import tensorflow as tf

from gradwatch.impls.backends._tensorflow import door

backend = door(dialect="autograd", first=tf, shared=False)
