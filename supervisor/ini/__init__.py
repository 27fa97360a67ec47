"""Reads INI files in Supervisor's form, with the file and line of every value. Imports plurals only.

Apart from `config` so that supervisorctl, which must start fast, can read its own section without the models.
"""
