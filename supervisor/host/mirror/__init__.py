"""Copies checkpoints into an object store and back, in one process for each job that may be killed at any time.

`process.py` is that process; only there is the library for stores (obstore) imported, by `protocol/mirror/store.py`.
`client.py` is the daemon's side.
May import `protocol` and what is below in `host`.
"""
