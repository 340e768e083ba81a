"""The life of a sample: the states of ``crates/custody``."""

from __future__ import annotations

from draw import Picture, finish, variants

picture = Picture(900, 490, "The life of a sample: reserved, live, retired, gone")

picture.box(20, 90, 170, "Reserved", "the producer writes;", "no consumer sees it")
picture.box(700, 90, 180, "Retired", "no new reader;", "open leases may end")
picture.arrow("M 105 90 L 105 28 L 790 28 L 790 88")
picture.text(450, 20, "abort, or the producer dies", "note")

picture.area(270, 50, 350, 300, "Live, for each group of consumers")
picture.box(290, 90, 140, "Waiting", "in the ready list")
picture.box(470, 90, 130, "Leased", "one consumer,", "until a deadline")
picture.box(290, 270, 140, "Dead", "out of attempts")
picture.box(470, 270, 130, "Acked", "used by the group")

picture.arrow("M 190 124 L 288 124")
picture.text(230, 116, "commit", "note")
picture.arrow("M 430 108 L 468 108")
picture.text(449, 100, "take", "note")
picture.arrow("M 470 136 L 432 136")
picture.text(290, 165, "nack, expiry: an attempt more", "note left")
picture.arrow("M 490 159 L 490 230 L 360 230 L 360 268")
picture.text(368, 250, "no attempt left", "note left")
picture.arrow("M 560 159 L 560 268")
picture.text(570, 220, "ack", "note left")

picture.arrow("M 620 124 L 698 124")
picture.text(659, 116, "retire", "note")

reasons = [
    ("Consumed", "every group has acknowledged it"),
    ("Superseded", "a later put of its id is live"),
    ("Aborted", "a process took it back"),
    ("Lost", "the engine no longer has its bytes"),
    ("DeadLetter", "a group gave up; the record stays"),
    ("Abandoned", "the producer died before the commit"),
    ("Other", "a reason of a later release"),
]
picture.area(640, 200, 250, 280, "retired because")
for line, (reason, meaning) in enumerate(reasons):
    picture.text(655, 240 + 35 * line, reason, "name left")
    picture.text(655, 256 + 35 * line, meaning, "note left")

picture.box(270, 400, 330, "gone", "objects removed, record deleted, budget given back")
picture.arrow("M 700 148 L 630 148 L 630 425 L 602 425")
picture.text(500, 390, "no reader is left", "note left")

finish(
    picture,
    {
        "Progress": variants("crates/custody/src/live.rs", "Progress"),
        "Reason": variants("crates/custody/src/retired.rs", "Reason"),
    },
    "sample.svg",
)
