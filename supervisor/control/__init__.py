"""Serves people and clients over the control socket."""
