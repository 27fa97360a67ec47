"""How does this daemon train one job together with those of other nodes? `core/gang/view.py` decides; most daemons are
alone and load none of this.

Imports `program` and what is below it, and nothing of `fleet`.
"""
