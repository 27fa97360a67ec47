"""What changes from one step to the next and no checkpoint holds? Begins in `step_watch`, which has the invariant.

Imports no framework, and of `checks` only what reads the source and follows references.
"""
