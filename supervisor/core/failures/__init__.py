"""What failures mean: budgets, back-off, hangs, crash loops."""
