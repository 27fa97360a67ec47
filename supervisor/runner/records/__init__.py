"""What is counted and remembered of a program: goodput, metrics, saves, the timeline."""
