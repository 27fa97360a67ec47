"""Which notices hold that this host is going away, and when does a flush have to be requested because of them?

notice.py has the values, active.py decides what is new in the reports of sources, flush.py plans the last flush.
Imports nothing else of the core.
"""
