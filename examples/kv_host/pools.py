"""The pages of KV: a pool in the device's memory, where the model reads and writes them, and a pool in host memory, from
which the tier stores them. Here both are host memory; the layouts differ as they usually do, and every copy is a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from examples.kv_host.model import Past
from tensorhold import kv


class Pools:
    """A page is the keys and values of ``page_tokens`` tokens, of all layers and of this rank's heads."""

    def __init__(self, config: Any, *, page_tokens: int, host_pages: int, device_pages: int) -> None:
        layers, heads, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.page_tokens = page_tokens
        # Not a number: a page that is read before it was filled shows in every logit behind it.
        self.device = torch.full((layers, 2, device_pages, heads, page_tokens, size), torch.nan)
        # A page is one run of bytes, which the tier stores as one object.
        self.host = torch.full((host_pages, layers, 2, heads, page_tokens, size), torch.nan)
        self.page_bytes = self.host[0].numel() * self.host.element_size()

    def layout(self) -> str:
        """What another process must have the same to read these pages."""
        return f"page-first {tuple(self.host.shape[1:])}"

    def copy(self, operation: kv.Operation, page: kv.PageAt) -> None:
        """Copies one page of a load-back or a write-back."""
        assert page.host is not None and page.device is not None
        if operation.kind == "load-back":
            self.device[:, :, page.device].copy_(self.host[page.host])
        else:
            self.host[page.host].copy_(self.device[:, :, page.device])

    def gather(self, pages: Sequence[int], tokens: int) -> Past:
        """The KV of the first ``tokens`` tokens of a request with these device pages, as the model takes it."""
        if tokens == 0:
            return []
        used = torch.tensor(pages[: -(-tokens // self.page_tokens)])
        # layers, keys and values, heads, pages and tokens in them, size of a head
        joined = self.device[:, :, used].transpose(2, 3).flatten(3, 4)[:, :, :, :tokens]
        return [(keys[None], values[None]) for keys, values in joined]

    def scatter(self, pages: Sequence[int], start: int, new: Past) -> None:
        """Writes the KV of the tokens from ``start`` on to the pages in which they belong."""
        for layer, (keys, values) in enumerate(new):
            for kind, computed in enumerate((keys[0], values[0])):
                for at in range(computed.shape[1]):
                    page, slot = divmod(start + at, self.page_tokens)
                    self.device[layer, kind, pages[page], :, slot] = computed[:, at]
