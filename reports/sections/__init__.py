"""One module a section of the page; found by walking this folder."""
