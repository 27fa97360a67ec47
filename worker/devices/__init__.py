"""What training computes with: the distribution strategy, and the conditions on which the bits of a run depend."""
