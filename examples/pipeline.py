"""A producer and a consumer in two programs, which live through the loss of a server.

    python pipeline.py produce --store a --samples 600
    python pipeline.py consume --store a --samples 600

The producer puts samples whose bytes follow from their numbers, waits for room in the store's budget, and makes again what it
is told is lost, until all are acknowledged. The consumer takes them, compares every byte, and acknowledges them. Both go on
after errors until there was no progress for ``--patience`` seconds. The last line of each is JSON.

The cluster is the one of the environment (TENSORHOLD_MASTER, TENSORHOLD_ETCD, …); with TENSORHOLD_KEY the store is sealed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

import tensorhold

GROUP = "trainers"
BYTES = 256 << 10
AT_A_TIME = 32
"""How many samples there may be at a time: the producer waits for the consumer."""


def name_of(number: int) -> str:
    return f"sample-{number:05}"


def bytes_of(sample: str) -> bytes:
    return hashlib.shake_128(sample.encode()).digest(BYTES)


class Patience:
    """Goes on after errors, until there was no progress for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = time.monotonic()
        self.errors = 0

    def progress(self) -> None:
        self._since = time.monotonic()

    def wait(self, error: tensorhold.TensorholdError | None = None) -> None:
        """Waits a moment. Raises if trying again does not help, or if it has lasted too long."""
        self.errors += error is not None
        if error is not None and isinstance(error, (tensorhold.Denied, tensorhold.Invalid, tensorhold.Corrupt)):
            raise error
        if time.monotonic() - self._since > self._seconds:
            raise error or TimeoutError(f"no progress for {self._seconds} s")
        time.sleep(0.2)


def produce(store: tensorhold.FeatureStore, samples: int, per_second: float, patience: Patience) -> dict[str, int]:
    to_make = [name_of(number) for number in range(samples)]
    unused = set(to_make)
    lost = 0
    while unused:
        try:
            for ref in store.lost(timeout=0.01):
                lost += 1
                to_make.append(ref.sample)
            if to_make:
                # Trying again after a lost answer is right, too: what was put twice is replaced, and used twice at worst.
                store.put(to_make[0], {"hidden": bytes_of(to_make[0])}, groups=[GROUP], max_attempts=100)
                to_make.pop(0)
                patience.progress()
                time.sleep(1 / per_second)
                continue
            names = sorted(unused)
            still_there = {name for name, is_there in zip(names, store.exists(names), strict=True) if is_there}
            if still_there != unused:
                unused = still_there
                patience.progress()
            patience.wait()
        except tensorhold.TensorholdError as error:
            patience.wait(error)
    return {"put": samples, "lost": lost}


def consume(store: tensorhold.FeatureStore, samples: int, patience: Patience) -> dict[str, int]:
    used: set[str] = set()
    wrong = 0
    while len(used) < samples:
        try:
            leases = store.take(GROUP, timeout=2)
            if not leases:
                patience.wait()
            for lease in leases:
                with lease:  # acknowledged at its end; handed back if the engine does not have the bytes
                    sample = lease.ref.sample
                    wrong += lease.get()["hidden"].tobytes() != bytes_of(sample)
                used.add(sample)
                patience.progress()
                print(f"used {len(used)} of {samples}", flush=True)
        except tensorhold.TensorholdError as error:
            patience.wait(error)
    return {"used": len(used), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["produce", "consume"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--per-second", type=float, default=100.0, metavar="SAMPLES", help="the most that are put in a second")
    parser.add_argument("--patience", type=float, default=90.0, metavar="SECONDS")
    asked = parser.parse_args()
    patience = Patience(asked.patience)
    budget = AT_A_TIME * (BYTES + 1024)  # a sealed sample is a little longer
    key = os.environ.get("TENSORHOLD_KEY") or None
    with tensorhold.open(asked.store, key=key, budget=budget, role=asked.part) as store:
        if asked.part == "produce":
            counted = produce(store, asked.samples, asked.per_second, patience)
        else:
            counted = consume(store, asked.samples, patience)
        print(json.dumps({**counted, "errors": patience.errors}), flush=True)


if __name__ == "__main__":
    main()
