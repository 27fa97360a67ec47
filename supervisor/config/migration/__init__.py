"""Files written for Supervisor: what becomes of each line (`outcomes.py`), and a copy that can be used here.

May import all of config that loads a file.
"""
