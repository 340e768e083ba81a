"""A sealed store, and the rotation of its key. See ``README.md``."""
