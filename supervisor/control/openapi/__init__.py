"""The description of the API, made from the command table."""
