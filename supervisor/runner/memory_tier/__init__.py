"""The state that a job's worker keeps in memory: who holds it while the worker lives, and has it written afterwards.

Imports `attempt`, `records` and what lies below."""
