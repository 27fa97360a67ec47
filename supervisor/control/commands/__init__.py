"""What clients can have the daemon do: the table of commands, and a module for each subject.

A command is a function from a request to an answer; both are dataclasses, of which base/json_types.py makes JSON and
the description of the API. Imports base and http, besides runner and what is below it.
"""
