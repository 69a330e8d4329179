"""One module a trace format, found by walking this folder.

Each defines NAME, `sniff(name, head)` and `read(path, processes=1)`.
"""
