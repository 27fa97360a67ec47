"""What can `fit` train on? Each kind of data that `model.fit` takes, read from any position of an epoch on."""
