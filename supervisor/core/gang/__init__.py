"""When do the nodes that train one job begin and end together? `view` has the theory; `steps` is what the batch script
decides once all daemons have ended. Imports the protocol alone.
"""
