"""What does each cell of the transition table do? One module for each part of a program's life; imports `program`."""
