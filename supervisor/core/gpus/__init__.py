"""What is wrong with a GPU, what follows from it, and with which GPUs can a job start? Imports nothing of the core."""
