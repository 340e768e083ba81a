import holdfast
import torch

with holdfast.open("first") as store:
    store.put("sample-1", {"hidden": torch.ones(4, 1024)}, groups=["trainers"])  # a producer
    for lease in store.take("trainers"):  # a consumer, in this process or another
        with lease:  # acknowledged at the end of the block, handed back if it raises; the last ack frees the sample
            print(lease.ref, lease.get(as_="torch")["hidden"].sum())
