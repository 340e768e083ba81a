"""A capture server, as a patched SGLang is one to SpecForge: it runs the prefill, writes what it captured into Mooncake
under the keys that it is told, and answers which. ``python -m real.specforge_server PORT FOLDER``."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from real.specforge_assets import CAPTURED


class Capture:
    """The model, and Mooncake's own client: what a serving engine writes is not Tensorhold's."""

    def __init__(self, folder: Path) -> None:
        import torch
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        from transformers import LlamaForCausalLM

        torch.set_num_threads(1)
        causal: Any = LlamaForCausalLM  # published without types
        self._model = causal.from_pretrained(folder / "target", dtype=torch.bfloat16).eval()
        self._client = MooncakeDistributedStore()
        code = self._client.setup(
            local_hostname="127.0.0.1",
            metadata_server=os.environ["MOONCAKE_METADATA_SERVER"],
            global_segment_size=0,
            local_buffer_size=16 << 20,
            protocol="tcp",
            rdma_devices="",
            master_server_addr=os.environ["MOONCAKE_MASTER_SERVER_ADDR"],
        )
        if code != 0:
            raise RuntimeError(f"Mooncake's setup returned {code}")
        self._pinned = ReplicateConfig()
        self._pinned.replica_num = 1
        self._pinned.with_hard_pin = True
        self._one_at_a_time = threading.Lock()

    def __call__(self, ids: list[int], wanted: dict[str, Any]) -> dict[str, Any]:
        import torch

        with self._one_at_a_time, torch.no_grad():
            seen = self._model.model(torch.tensor([ids]), output_hidden_states=True)
            names = wanted["features"]
            tensors = {
                names["aux"]: torch.cat([seen.hidden_states[layer + 1] for layer in CAPTURED], -1),
                names["last_hidden"]: seen.last_hidden_state,
            }
            for item in wanted["passthrough"]:
                values = torch.tensor(item["data"], dtype=getattr(torch, item["dtype"]))
                tensors[item["name"]] = values.reshape(item["shape"])
            for name, tensor in tensors.items():
                self._put(f"{wanted['store_id']}/{wanted['sample_id']}/g{wanted['gen']}/{name}", tensor, wanted)
        features = {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in tensors.items()
        }
        told = {name: wanted[name] for name in ("sample_id", "store_id", "gen")}
        return {**told, "aux_layer_ids": list(CAPTURED), "features": features}

    def _put(self, key: str, tensor: Any, wanted: dict[str, Any]) -> None:
        tensor = tensor.contiguous()
        if wanted["replace"]:
            self._client.remove(key)
        self._client.register_buffer(tensor.data_ptr(), tensor.nbytes)
        code = self._client.put_from(key, tensor.data_ptr(), tensor.nbytes, self._pinned)
        self._client.unregister_buffer(tensor.data_ptr())
        if code < 0:
            raise RuntimeError(f"Mooncake's put_from returned {code} for {key}")


def main() -> None:
    capture = Capture(Path(sys.argv[2]))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = [
                {"meta_info": {"spec_capture": capture(ids, wanted)}}
                for ids, wanted in zip(body["input_ids"], body["spec_capture"], strict=True)
            ]
            self.answer(json.dumps(rows).encode())

        def do_GET(self) -> None:
            self.answer(b"")

        def answer(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """SpecForge's log says what was asked."""

    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
