"""Programs that run as they are: ``python -m examples.NAME``, from the root of the repository. See ``README.md``."""
