"""A producer that serves requests on asyncio, with a bounded store. See ``README.md``."""
