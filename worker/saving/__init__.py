"""When a checkpoint is saved, how it becomes durable, and which old ones are deleted."""
