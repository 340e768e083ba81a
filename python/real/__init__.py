"""The frameworks themselves, run on a CPU with Tensorhold in place: ``cargo xtask real vllm``.

Schedulers, hashing, controllers, threads and metrics are the frameworks' own. What they have for GPUs only is replaced
here by plain copies, and each replacement says what it stands for.
"""
