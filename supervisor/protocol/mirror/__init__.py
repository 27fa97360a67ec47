"""What a run looks like in an object store, and which of its checkpoints count. Pure: no store, no disk."""
