"""What an operation, a collective or a step should cost: numbers in, numbers out.

Pure: standard library only, no file but its own catalogue, nothing of the other packages.
"""
