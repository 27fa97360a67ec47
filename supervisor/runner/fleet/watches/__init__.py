"""What is looked at from time to time while programs run: memory and health, speed, descendants, suspends, ends."""
