"""Lends memory to the Mooncake cluster of `tensorhold up`, until it is ended. Its settings are an argument, as JSON."""

import json
import sys
import threading

from mooncake.store import MooncakeDistributedStore

settings = json.loads(sys.argv[1])
store = MooncakeDistributedStore()
code = store.setup(
    "127.0.0.1",
    settings["metadata"],
    settings["segment_bytes"],
    16 << 20,  # its own buffer
    "tcp",
    "",
    settings["master"],
)
if code != 0:
    sys.exit(f"setup failed with code {code}: is the master at {settings['master']} alive?")
print(settings["ready_line"], store.get_hostname(), flush=True)
threading.Event().wait()  # until it is ended
