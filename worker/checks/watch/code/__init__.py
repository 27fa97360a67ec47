"""What the code of the loop says: which names it carries, makes anew, or puts into `run.state`."""
