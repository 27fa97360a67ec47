"""What checkpoints hold of a script's values, and how that is found out. Imports no framework."""
