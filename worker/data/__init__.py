"""How does training read its batches from any position on, in one process or in several? Imports only worker.state."""
