"""What each cell of the transition table does; one file for each part of a program's life."""
