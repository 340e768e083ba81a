"""A sealed store whose key is replaced while it is in use, by the three steps of docs/sealing.md."""

from __future__ import annotations

import base64
import secrets
import tempfile
from pathlib import Path

import numpy as np

import tensorhold
from examples.cluster import run, store_name

OLD, NEW = "2026-10", "2026-11"
"""The ids of the keys. They are no secret: a sample's record names the key that sealed it."""
GROUP = "trainers"


def make_key(folder: Path, key_id: str) -> str:
    """Writes a key to a file that only this user reads. Returns where it is, as ``tensorhold.open`` wants it."""
    path = folder / key_id
    path.touch(mode=0o600)
    path.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    return f"file:{path}"


def put(store: tensorhold.FeatureStore, sample: str) -> tensorhold.SampleRef:
    """Puts a sample, sealed with the store's current key."""
    return store.put(sample, {"hidden": np.full(1024, 1.0)}, groups=[GROUP])


def can_get(store: tensorhold.FeatureStore, sample: str) -> str:
    """Whether this process can open a sample, and if not, which key is missing."""
    try:
        total = store.get(sample, as_="numpy")["hidden"].sum()
    except tensorhold.Denied as refused:
        return f"refused, it needs the key {refused.facts['key_id']}"
    return f"opened, the sum is {total:.0f}"


def main() -> None:
    name = store_name("sealed")
    with tempfile.TemporaryDirectory() as folder:
        old, new = (make_key(Path(folder), key_id) for key_id in (OLD, NEW))

        with tensorhold.open(name, key={OLD: old}) as store, tensorhold.open(name) as stranger:
            october = put(store, "october")
            print(f"sealed with {OLD}: a process with the key: {can_get(store, 'october')}")
            print(f"sealed with {OLD}: a process without a key: {can_get(stranger, 'october')}")

        # Every process is started again twice: first all of them learn the new key, then they seal with it.
        with tensorhold.open(name, key={OLD: old, NEW: new}, key_id=OLD) as store:
            both = put(store, "both")
            print(f"step 1, both keys, {OLD} seals: both: {can_get(store, 'both')}")

        with tensorhold.open(name, key={OLD: old, NEW: new}, key_id=NEW) as store:
            put(store, "november")
            for sample in ("october", "both", "november"):
                print(f"step 2, both keys, {NEW} seals: {sample}: {can_get(store, sample)}")

            with tensorhold.open(name, key={NEW: new}) as early:
                print(f"step 3 too early: october: {can_get(early, 'october')}")
            for ref in (october, both):
                with store.lease(ref, GROUP) as lease:  # the trainers use what the old key sealed, and that frees it
                    lease.get()
            store.drain()
            print(f"samples that the old key sealed: {sum(store.exists(['october', 'both']))}")

        with tensorhold.open(name, key={NEW: new}) as store:
            print(f"step 3, without {OLD}: november: {can_get(store, 'november')}")
            print(f"ended, with {store.end()} sample left")


if __name__ == "__main__":
    run(main)
