"""`worker.Run`: what a training script uses, and how it restores and saves through the other folders."""
