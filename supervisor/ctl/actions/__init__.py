"""What supervisorctl can do: one function for each action, and the table that names them all."""
