"""Batches from any position on, for one process or for several that train together."""
