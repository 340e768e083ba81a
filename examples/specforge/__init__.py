"""From SpecForge's own Mooncake store to Tensorhold. See ``README.md``."""
