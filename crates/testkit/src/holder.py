"""Lends a segment to a Mooncake cluster until standard input closes. Started by tensorhold_testkit, settings as JSON."""

import json
import sys
import threading

from mooncake.store import MooncakeDistributedStore

settings = json.loads(sys.argv[1])
ssd_path = settings["ssd_path"]
store = MooncakeDistributedStore()
code = store.setup(
    "127.0.0.1",
    settings["metadata"],
    settings["segment_bytes"],
    128 << 20,  # its own buffer; room for an object on its way between SSD and DRAM
    "tcp",
    "",
    settings["master"],
    None,
    ssd_path is not None,
    ssd_path or "",
    "default",
)
if code != 0:
    sys.exit(f"setup failed with code {code}: is the master at {settings['master']} alive?")
print(settings["ready_line"], store.get_hostname())

if settings["until_stdin_closes"]:
    sys.stdin.buffer.read()
    store.close()
else:
    threading.Event().wait()  # until killed
