"""What of TensorFlow and Keras is used although it is not public: here and nowhere else, checked when it is imported.

A release that lacks a name is refused with a message, before it could fail in the middle of training. Imports nothing
of the package.
"""
