"""`python -m worker.prove`: proves that a script's training, killed at any instant, ends as an undisturbed one does."""
