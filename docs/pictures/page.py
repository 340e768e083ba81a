"""The life of a KV page: the operations of ``crates/kvcache``, and what becomes of a page in the store."""

from __future__ import annotations

from draw import Picture, finish, variants

picture = Picture(900, 400, "The life of a KV page: device, host memory, the store, and back")

picture.box(20, 60, 170, "device", "where the model runs", "filled by a prefill", "or a load-back")
picture.box(300, 60, 170, "host memory", "matched only after", "its write has ended", "well")
picture.area(580, 20, 300, 190, "the store (L3): names are hashes of tokens")
picture.box(600, 60, 120, "DRAM", "of a holder;", "may be evicted")
picture.box(740, 60, 120, "SSD", "of a holder,", "if there is one")
picture.arrow("M 720 78 L 738 78")
picture.arrow("M 740 108 L 722 108")

picture.arrow("M 190 78 L 298 78")
picture.text(245, 70, "WriteBack", "note")
picture.arrow("M 300 128 L 192 128")
picture.text(245, 146, "LoadBack", "note")
picture.arrow("M 470 78 L 598 78")
picture.text(530, 70, "Backup", "note")
picture.arrow("M 598 120 L 472 120")
picture.text(530, 138, "Prefetch", "note")
picture.text(610, 172, "Query", "name left")
picture.text(610, 190, "which pages are there: a hint, no promise", "note left")

picture.box(20, 270, 240, "a get found it", "length and checksum are right:", "the page is used")
picture.box(300, 270, 270, "a get found something else", "wrong length, another page, torn bytes:", "removed, and counted as a miss")
picture.box(610, 270, 270, "a get found nothing", "evicted, or its holder is gone:", "a miss")
picture.text(450, 375, "A miss means that the model computes the page again. No output depends on the store.", "note")
picture.arrow("M 660 210 L 660 238 L 140 238 L 140 268")
picture.arrow("M 660 238 L 435 238 L 435 268")
picture.arrow("M 660 210 L 745 268")

finish(picture, {"Work": variants("crates/kvcache/src/plan/operation.rs", "Work")}, "page.svg")
