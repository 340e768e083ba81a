"""From SpecForge's own Mooncake store to Holdfast. See ``README.md``."""
