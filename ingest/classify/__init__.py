"""From the names and arguments that a trace carries to the words of `models.ops`. Pure."""
