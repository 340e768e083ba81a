"""The lines of the README. If no cluster answers, they end with what to do."""

import sys

import tensorhold
import numpy as np

try:
    with tensorhold.open("first") as store:
        # A producer. The sample stays until both groups have acknowledged it.
        store.put("sample-1", {"hidden": np.ones((4, 1024))}, groups=["trainers", "evaluators"])
        for lease in store.take("trainers"):  # a consumer, in this process or another
            with lease:  # acknowledged at its end, handed back if it raises
                print(lease.ref, lease.get(as_="numpy")["hidden"].sum())
except tensorhold.Unavailable as error:
    sys.exit(f'No cluster answers: {error}. To start one on this machine: tensorhold up; eval "$(tensorhold env)"')
