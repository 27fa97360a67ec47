"""How TensorFlow state becomes checkpoint files and is restored, bit for bit.

May import saving, devices, state and process.
"""
