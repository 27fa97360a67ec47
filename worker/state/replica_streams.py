"""Random numbers that differ between replicas, and yet come back after a restart."""

from typing import Any

import tensorflow as tf

from worker.state import extra_state

_SEED_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)  # the golden ratio in 64 bits: replicas' seeds lie far from other layers'


class ReplicaSeed(tf.keras.random.SeedGenerator):  # type: ignore[misc]  # Keras has no types
    """A Keras SeedGenerator whose draws depend on the replica too; its state is the same counter, saved as ever."""

    def next(self, ordered: bool = True) -> Any:
        """The seed of the next draw on the replica that asks; that of the first replica, outside of replicas."""
        seed = super().next(ordered)
        context = tf.distribute.get_replica_context()
        if context is None:
            return seed
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        return seed + tf.cast(tf.stack([replica * _SEED_STRIDE, tf.zeros_like(replica)]), seed.dtype)


def replica_streams(model: tf.keras.Model) -> tf.keras.Model:
    """Has every random layer of `model` draw other numbers on each replica; gives `model` back.

    Without it all replicas of a step draw the same dropout masks, as they share one seed. Call it after the model is
    built, before it is used. What the first replica draws stays what it was, and a restart draws what would have been
    drawn; with another number of replicas it is something else.
    """
    for layer in extra_state.tracked_objects(tf.train.Checkpoint(model=model), tf.keras.layers.Layer):
        for found in layer._seed_generators:
            if type(found) is tf.keras.random.SeedGenerator:
                found.__class__ = ReplicaSeed  # Keras makes it inside the layer and takes none from outside
    return model
