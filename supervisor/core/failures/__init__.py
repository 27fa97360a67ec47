"""What do failures mean? Budgets and back-off, hangs, suspect checkpoints. Imports only `protocol`."""
