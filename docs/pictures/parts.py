"""The parts of a deployment: which processes there are, and where bytes and records go."""

from __future__ import annotations

from draw import Picture, finish

picture = Picture(900, 330, "The parts of a deployment: bytes go to holders, records to etcd")

picture.box(20, 40, 190, "producers", "serving engines;", "tensorhold in the process")
picture.area(300, 14, 300, 116, "Mooncake Store")
picture.box(320, 40, 260, "holders, and their master", "the tensors' bytes, in DRAM and SSD;", "the master knows which holder has what")
picture.box(690, 40, 190, "consumer groups", "trainers, evaluators;", "tensorhold in the process")
picture.box(320, 200, 260, "etcd", "a record of each sample: who may", "read it, who has acknowledged it")
picture.box(20, 200, 190, "steward", "frees, expires, audits;", "page, metrics, alerts")

picture.arrow("M 210 66 L 318 66")
picture.text(262, 58, "bytes", "note")
picture.arrow("M 580 66 L 688 66")
picture.text(638, 58, "bytes", "note")
picture.arrow("M 150 108 L 318 214")
picture.text(282, 146, "reserve, commit", "note")
picture.arrow("M 740 108 L 582 214")
picture.text(600, 152, "take, acknowledge", "note")
picture.arrow("M 210 234 L 318 234")
picture.arrow("M 60 200 L 60 178 L 360 178 L 360 132")
picture.text(450, 306, "The last group's acknowledgement frees the sample's bytes. etcd never sees a tensor, and Mooncake sees no record.", "note")

finish(picture, {}, "parts.svg")
