"""What does the daemon do about GPUs that fail? Asks the helper, carries out what `core/gpus` decides, remembers it."""
