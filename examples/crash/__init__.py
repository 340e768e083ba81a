"""Two producers and a trainer in plain PyTorch; the trainer is killed half-way. See ``README.md``."""
