"""What does an attempt of a job begin from? Chooses between its directory, its memory and its mirror."""
