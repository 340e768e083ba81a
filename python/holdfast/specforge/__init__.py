"""SpecForge's feature store, in Holdfast's custody. Needs ``specforge`` 0.2 and ``torch``.

```python
from holdfast.specforge import HoldfastFeatureStore

store = HoldfastFeatureStore(store_id="run-7", master="127.0.0.1:50051", etcd=["http://127.0.0.1:2379"])
```

SpecForge's own command, with all of its processes on Holdfast: ``python -m holdfast.specforge train -c run.yaml``.
"""

from holdfast.specforge._launch import replace_mooncake_store
from holdfast.specforge._refs import FeatureCorrupt, FeatureStoreFailure
from holdfast.specforge._store import HoldfastFeatureStore

__all__ = ["FeatureCorrupt", "FeatureStoreFailure", "HoldfastFeatureStore", "replace_mooncake_store"]
