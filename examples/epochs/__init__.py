"""Two groups of consumers, and several epochs over samples that are kept. See ``README.md``."""
