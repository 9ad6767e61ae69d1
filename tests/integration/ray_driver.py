"""The driver of test_ray.py: a small Ray of its own in the folder that is given, a run that ends, and one that does not."""

import sys
from pathlib import Path

import ray

from pccl._run import keys as _keys

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "ray"))
import train

ray.init(
    num_cpus=3,  # what its scheduler counts; the processors of the machine may be fewer
    object_store_memory=80_000_000,
    include_dashboard=False,
    _node_ip_address="127.0.0.1",
    _temp_dir=sys.argv[1],
)
keys = str(_keys.write_files(Path(sys.argv[1]) / "run", _keys.new_keys())[0])
print("finished:", *train.run(2, 5, keys), flush=True)
try:
    train.run(3, 1_000_000, keys)
except KeyboardInterrupt:
    ray.shutdown()
    print("shut down", flush=True)
