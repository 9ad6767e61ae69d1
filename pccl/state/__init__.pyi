"""The public names of `pccl.state`, and where they are defined."""

from pccl._core.errors import StateLostError as StateLostError
from pccl.state._entries import Entries as Entries
from pccl.state._entries import module_tensors as module_tensors
from pccl.state._local.checkpoint import CheckpointError as CheckpointError
from pccl.state._local.checkpoint import load as load
from pccl.state._local.checkpoint import save as save
from pccl.state._local.checkpoint import warn_if_overridden as warn_if_overridden
from pccl.state._local.objects import extra_states as extra_states
from pccl.state._local.objects import load_extra_states as load_extra_states
from pccl.state._local.objects import load_object_state as load_object_state
from pccl.state._local.objects import object_state as object_state
from pccl.state._local.tree import LIMIT_BYTES as LIMIT_BYTES
from pccl.state._local.tree import TreeError as TreeError
from pccl.state._local.tree import allow as allow
from pccl.state._local.tree import decode as decode
from pccl.state._local.tree import encode as encode
from pccl.state._memory_storage import MemoryReader as MemoryReader
from pccl.state._memory_storage import MemoryWriter as MemoryWriter
from pccl.state._memory_storage import drain as drain
from pccl.state._snapshots.config import Restored as Restored
from pccl.state._snapshots.config import Snapshots as Snapshots
from pccl.state._start import Start as Start
from pccl.state._start import highest_step as highest_step

__all__: list[str]
