"""FLOPs and bytes of operations, one module a family; found by walking this folder."""
