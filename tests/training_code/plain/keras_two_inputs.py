"""Two inputs and two outputs in the shape of Keras' functional guide: dicts of arrays, losses by name, validation_split."""

import keras
import numpy as np
from keras import layers

num_tags = 12
num_words = 100
num_departments = 4

title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")

title_features = layers.Embedding(num_words, 16)(title_input)
body_features = layers.Embedding(num_words, 16)(body_input)
title_features = layers.LSTM(16)(title_features)
body_features = layers.LSTM(8)(body_features)
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)

model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
)

np.random.seed(5)
title_data = np.random.randint(num_words, size=(400, 6))
body_data = np.random.randint(num_words, size=(400, 15))
tags_data = np.random.randint(2, size=(400, num_tags)).astype("float32")
priority_targets = np.random.random(size=(400, 1))
dept_targets = np.random.randint(2, size=(400, num_departments))

model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=3,
    batch_size=32,
    validation_split=0.2,
)
