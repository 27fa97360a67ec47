"""What the daemon does with the state that a job's worker keeps in memory: it holds it, and has it written when the
worker is gone. Imports children and what it shares with the worker."""
