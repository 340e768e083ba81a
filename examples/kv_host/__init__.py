"""A host for the planner: a small server that runs a model on paged KV, and drives ``tensorhold.kv.Planner`` and ``Tier``.

=============  ===================================================================================================
``host``       the server: rounds, copies, requests
``group``      the ranks: two collectives in each round
``model``      a small random Llama, whole or one rank's part of it
``metrics``    what is counted
``pools``      the device's pages and the host's pages, and the copies between them
``inputs``     the prompts of both programs
``__main__``   serves four requests, serves them again, and serves them after a restart
``ranks``      two ranks, one of which cannot read some of its pages
=============  ===================================================================================================

A round::

    exchange: new requests, aborts, tick, ended operations of all ranks     (a collective)
        -> events -> Reserve -> Planner.step -> plan, the same on all ranks (a collective)
             queries, prefetches, backups  -> Tier.submit                   (its threads)
             load-backs, write-backs       -> copies between the pools      (one thread)
             grants                        -> the model: a prompt, or one token of each request   (one thread)
        -> PrefillDone, Appended, Finish

A request::

    submit -> [L3 asked -> prefetched] -> [loaded back] -> prompt computed -> a token a round -> answered -> written back
                  any of these -> abort -> its operation has ended -> gone                 |
                                           retracted -> written back -> resumed: as new  <-+  no room for the next token

What holds:

* Pages belong to the planner. The host reads and writes only those of a grant, and those that an open operation names.
* The model runs only on requests with a grant, and no event about them is taken in meanwhile.
* Every operation of a plan has one completion, whatever happened: refused by the tier, failed in the copy, late.
* A generated token has KV only after the model has run on it, so ``Appended`` names a token one round after its choice.
* The oldest request with pages always gets its next token: the youngest one gives up its pages for it. So all of them end.
* All ranks make the same plans: the tick, the requests and the aborts are those of rank 0, and an operation has ended when
  it has ended on all ranks, told in the order of the plans. Every rank joins both collectives of every round, whatever
  failed on it (KV22). No plan is carried out before all ranks have compared it.

When something fails:

=====================================  ==============================================================================
L3 is slow, gone, or has a wrong page  the pages are computed; a request waits for L3 only until its deadline
a copy fails                           the pages from there on are computed, or are not written back
a caller is cancelled, or too late     it does not wait any longer; its request is aborted as below
a request is aborted under a transfer  its pages stay with the transfer until that has ended
the model raises                       all callers get the error, and the host ends
a rank dies, or hangs                  the collective of the others raises after its timeout, and they end
the ranks' plans or tokens differ      all ranks see it in the same round, before they act on it, and end
=====================================  ==============================================================================
"""

from __future__ import annotations

from examples.kv_host.group import Alone, Diverged, Gloo, Group
from examples.kv_host.host import Aborted, Host, Pending, Result
from examples.kv_host.metrics import Cached, Metrics
from examples.kv_host.model import generate, make

__all__ = [
    "Aborted",
    "Alone",
    "Cached",
    "Diverged",
    "Gloo",
    "Group",
    "Host",
    "Metrics",
    "Pending",
    "Result",
    "generate",
    "make",
]
