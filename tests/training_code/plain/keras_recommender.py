"""KerasRS' tutorial "basic retrieval": the package's layers in a model with its own loss, a cache behind the shuffle."""

import keras
import keras_rs
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(42)
rng = np.random.default_rng(1)
users_count, movies_count = 50, 40
user_ids = rng.integers(users_count, size=1500).astype("int32")
movie_ids = rng.integers(movies_count, size=1500).astype("int32")
user_ratings = ((user_ids * 7 + movie_ids * 3) % 5 / 4.0).astype("float32")


def preprocess_rating(user, movie, rating):
    return user, {"movie_id": movie, "rating": rating}


ratings = tf.data.Dataset.from_tensor_slices((user_ids, movie_ids, user_ratings)).map(preprocess_rating)
shuffled_ratings = ratings.shuffle(1500, reshuffle_each_iteration=False)
train_ratings = shuffled_ratings.take(1200).batch(100).cache()
test_ratings = shuffled_ratings.skip(1200).take(300).batch(100).cache()


class RetrievalModel(keras.Model):
    """Create the retrieval model with the provided parameters."""

    def __init__(self, num_users, num_candidates, embedding_dimension=16, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = keras.layers.Embedding(num_users, embedding_dimension)
        self.candidate_embedding = keras.layers.Embedding(num_candidates, embedding_dimension)
        self.dropout = keras.layers.Dropout(0.2)
        self.cross = keras_rs.layers.FeatureCross()
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=10, return_scores=False)
        self.loss_fn = keras.losses.MeanSquaredError()

    def build(self, input_shape):
        self.user_embedding.build(input_shape)
        self.candidate_embedding.build(input_shape)
        self.cross.build((*input_shape, 16))
        # In this case, the candidates are directly the movie embeddings.
        self.retrieval.candidate_embeddings = self.candidate_embedding.embeddings
        self.retrieval.build(input_shape)
        super().build(input_shape)

    def call(self, inputs, training=False):
        user_embeddings = self.dropout(self.user_embedding(inputs), training=training)
        user_embeddings = self.cross(user_embeddings)
        result = {"user_embeddings": user_embeddings}
        if not training:
            result["predictions"] = self.retrieval(user_embeddings)
        return result

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        candidate_id, rating = y["movie_id"], y["rating"]
        user_embeddings = y_pred["user_embeddings"]
        candidate_embeddings = self.candidate_embedding(candidate_id)
        labels = keras.ops.expand_dims(rating, -1)
        scores = keras.ops.sum(keras.ops.multiply(user_embeddings, candidate_embeddings), axis=1, keepdims=True)
        return self.loss_fn(labels, scores, sample_weight)


model = RetrievalModel(users_count, movies_count)
model.compile(optimizer=keras.optimizers.Adagrad(learning_rate=0.1))
model.fit(train_ratings, validation_data=test_ratings, validation_freq=2, epochs=4, verbose=2)
predictions = model.predict(keras.ops.convert_to_tensor([7]))
print(f"Recommended movies for user 7: {keras.ops.convert_to_numpy(predictions['predictions'])}")
