"""SpecForge's feature store, in Tensorhold's custody. Needs ``specforge`` 0.2 and ``torch``.

```python
from tensorhold.specforge import TensorholdFeatureStore

store = TensorholdFeatureStore(store_id="run-7", master="127.0.0.1:50051", etcd=["http://127.0.0.1:2379"])
```

SpecForge's own command, with all of its processes on Tensorhold: ``python -m tensorhold.specforge train -c run.yaml``.
"""

from tensorhold.specforge._launch import replace_mooncake_store
from tensorhold.specforge._refs import FeatureCorrupt, FeatureStoreFailure
from tensorhold.specforge._store import TensorholdFeatureStore

__all__ = ["FeatureCorrupt", "FeatureStoreFailure", "TensorholdFeatureStore", "replace_mooncake_store"]
