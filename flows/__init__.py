"""The command line and the Prefect flows: thin, over plain functions of the other packages."""
