"""The options of the SGLang back end, and the names of its pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tensorhold.errors import Invalid
from tensorhold.kv import Namespace, PageStore, Rank

if TYPE_CHECKING:
    from tensorhold._sglang_pools import Meaning

SGLANG_OPTIONS: Final = frozenset({"backend_name", "module_path", "class_name", "interface_v1", "extra_backend_tag"})
"""Options that SGLang itself reads, or that its own back ends know by the same name."""


@dataclass(frozen=True)
class Options:
    """The options in ``--hicache-storage-backend-extra-config``. Everything has a default."""

    master: str = "127.0.0.1:50051"
    """Mooncake's master: ``host:port``, or ``etcd://host:port;...``."""
    admin: str | list[str] | None = None
    """The masters' HTTP addresses, which answer existence queries. None: port 9003 on the master's host."""
    metadata: str = "P2PHANDSHAKE"
    """Where transfer engines find each other; the same for all members of the cluster."""
    protocol: str = "tcp"
    """How bytes move: ``tcp`` or ``rdma``."""
    local_hostname: str = "127.0.0.1"
    """The name under which other hosts reach this one."""
    devices: str = ""
    """Network devices for RDMA, separated by commas. Empty: the engine chooses."""
    frames: int = 3
    """The number of buffers that pages pass through. At least one: the engine must never write to SGLang's own
    memory."""
    frame_bytes: int = 64 << 20
    """The size of each buffer, at least that of one page. A batch that fits into one buffer is one call of the
    engine."""
    direct_put_bytes: int = 256 << 10
    """Pages whose parts are all at least this long are stored directly from where they lie. 0: never, and the engine
    does not get to know SGLang's memory at all."""
    lanes: int = 2
    """The number of threads of one set or get, including the caller's."""
    replicas: int = 1
    """The number of copies of each page in DRAM."""
    connect_timeout: float = 30.0
    """The most seconds that opening may take."""
    exists_timeout: float = 2.0
    """The most seconds that an existence query may take; after that, the pages count as absent."""
    get_timeout: float = 10.0
    """The most seconds that one batch of gets may take; pages that have not arrived by then are misses."""
    set_timeout: float = 20.0
    """The most seconds that one batch of sets may take."""
    prefetch_on_exist: bool = True
    """Whether pages that an existence query finds on SSD only are read ahead, so that the get that follows finds them in
    memory. It costs nothing where there is no SSD tier."""
    prefetch: dict[str, Any] = field(default_factory=dict)
    """Settings of prefetches: see :class:`tensorhold.kv.PageStore`."""
    weights_version: str = ""
    """The version of the model's weights. Pages of another version are not found."""
    interface_v1: bool = False
    """Whether SGLang calls ``batch_get_v1`` and ``batch_set_v1``. Set it: the older calls copy every page once more."""
    extra_backend_tag: str | None = None
    """A prefix of all names: processes with different prefixes share no pages."""
    key: str | None = field(default=None, repr=False)
    """The tier's key, the same for all processes: ``env:NAME``, ``file:PATH``, or its base64 or hex text. Pages are
    then encrypted and authenticated, and their names reveal nothing. SGLang shows its options in logs: give a
    reference."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that Mooncake's library reads when it is loaded (``MC_...``)."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further settings of the engine."""

    @staticmethod
    def read(extra: Mapping[str, Any] | None) -> Options:
        """Parses SGLang's extra config. An unknown name is refused, so that a typing error does not silently become a
        default."""
        known = {one.name for one in fields(Options)}
        given = {name: value for name, value in (extra or {}).items() if name in known}
        strange = sorted(set(extra or {}) - known - SGLANG_OPTIONS)
        if strange:
            raise Invalid(
                f"there is no option {', '.join(strange)}; there are {', '.join(sorted(known))}",
                operation="sglang.options",
            )
        given["interface_v1"] = bool(given.get("interface_v1", False))
        options = Options(**given)
        if options.frames < 1:
            raise Invalid("frames must be at least 1", operation="sglang.options")
        return options

    def open(self) -> PageStore:
        """Opens the page store."""
        return PageStore(
            master=self.master,
            admin=self.admin,
            metadata=self.metadata,
            protocol=self.protocol,
            local_hostname=self.local_hostname,
            frames=self.frames,
            frame_bytes=self.frame_bytes,
            timeout=self.connect_timeout,
            key=self.key,
            environment=self.environment,
            engine={"devices": self.devices, **self.engine},
            pages={
                "lanes": self.lanes,
                "replicas": self.replicas,
                "direct_put_bytes": self.direct_put_bytes or None,
            },
            prefetch=self.prefetch,
        )


@dataclass(frozen=True)
class Names:
    """The names of one pool's pages: ``kv/{tag}/{namespace}/{key}/t{tp}p{pp}c{cp}``.

    The namespace is a hash of everything that a page's bytes depend on besides its tokens (KV11). A pool that splits
    heads has several objects for a page, one for each of the smaller ranks; all other pools have one.
    """

    before: str
    after: tuple[str, ...]

    @staticmethod
    def of(config: Any, options: Options, meaning: Meaning, version: str, group: str, shared: bool) -> Names:
        """With ``shared`` all TP ranks hold the same bytes, so the names do not contain the rank. ``version`` is the one
        that SGLang knows its weights by."""
        pp = Rank(config.pp_rank, config.pp_size)
        cp = Rank(config.attn_cp_rank, config.attn_cp_size)
        split = config.tp_lcm_size // config.tp_size if config.should_split_heads and not shared else 1
        if shared:
            ranks = [Rank(config.dcp_rank, config.dcp_size)]
        else:
            ranks = [Rank(config.tp_rank * split + n, config.tp_size * split) for n in range(split)]
        namespace = Namespace(
            model=meaning.model,
            weights=json.dumps([options.weights_version, version]),
            dtype=meaning.dtype,
            layout=meaning.layout,
            group=f"{group}/{'shared' if shared else 'sharded'}",
            page_tokens=meaning.page_tokens,
            tp=ranks[0],
            pp=pp,
            cp=cp,
        )
        tag = "" if options.extra_backend_tag is None else quote(str(options.extra_backend_tag), safe="") + "/"
        return Names(
            before=f"kv/{tag}{namespace.root().hex()[:32]}/",
            after=tuple(f"/t{rank.rank}p{pp.rank}c{cp.rank}" for rank in ranks),
        )

    def all(self, keys: list[str]) -> list[str]:
        """The names of the objects of these pages, page by page."""
        before, after = self.before, self.after
        if len(after) == 1:
            end = after[0]
            return [f"{before}{key}{end}" for key in keys]
        return [f"{before}{key}{end}" for key in keys for end in after]
