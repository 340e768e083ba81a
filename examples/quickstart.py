"""A producer and a consumer in a few lines. Needs a Mooncake master with a holder, and an etcd: those of the environment
(TENSORHOLD_MASTER, TENSORHOLD_ADMIN, TENSORHOLD_ETCD), or those on this host (127.0.0.1:50051, http://127.0.0.1:2379).
"""

import sys

import torch

import tensorhold

try:
    with tensorhold.open("quickstart") as store:
        # A producer: any number of tensors, of any kind, form one sample, visible as a whole or not at all.
        hidden = torch.randn(4, 1024, dtype=torch.bfloat16)
        for n in range(3):
            store.put(f"sample-{n}", {"hidden": hidden + n, "ids": torch.arange(4)}, groups=["trainers"])

        # A consumer, usually another process: takes samples, gets exactly the bytes that were put, acknowledges them.
        for lease in store.take("trainers", count=3):
            with lease:  # acknowledged at the end of the block; handed back to the group if it raises
                tensors = lease.get(as_="torch")  # no copy: the memory that the bytes arrived in
                print(lease.ref, tuple(tensors["hidden"].shape), tensors["hidden"].dtype)

        store.drain()  # the last ack frees a sample; this waits until the bytes are gone
        print("all samples are used and freed")
except tensorhold.Unavailable as error:
    sys.exit(f'No cluster answers: {error}. To start one on this machine: tensorhold up; eval "$(tensorhold env)"')
