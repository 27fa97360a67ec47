"""What a run looks like in an object store, which of its checkpoints count, and how they are read from there.

`keys.py` and `line.py` are pure; `store.py` is the only user of the library for stores.
"""
