"""One module a trace format. Each defines NAME, `sniff(path, head)` and `read(source)`; found by walking this folder."""
