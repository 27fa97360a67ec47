"""What of a training loop would a restart not bring back? Looked for and named at the first step. Imports state."""
