"""The public names of `pccl.distributed`, and where they are defined."""

from pccl._core.errors import JoinError as JoinError
from pccl._core.errors import Left as Left
from pccl._core.errors import ProtectionError as ProtectionError
from pccl._core.errors import StateLostError as StateLostError
from pccl.distributed._board import BootstrapError as BootstrapError
from pccl.distributed._change import Change as Change
from pccl.distributed._change import on_change as on_change
from pccl.distributed._elastic import Elastic as Elastic
from pccl.distributed._errors import CollectiveError as CollectiveError
from pccl.distributed._errors import CollectiveTimeoutError as CollectiveTimeoutError
from pccl.distributed._errors import PeerLostError as PeerLostError
from pccl.distributed._group import Options as Options
from pccl.distributed._group import ProcessGroup as ProcessGroup
from pccl.distributed._group import lost_ranks as lost_ranks
from pccl.distributed._parity import check_parity as check_parity
from pccl.distributed._supervise import supervise as supervise
from pccl.distributed._this_run import is_joining as is_joining
from pccl.distributed._this_run import join as join
from pccl.distributed._this_run import keys as keys
from pccl.distributed._this_run import masters as masters
from pccl.state import Snapshots as Snapshots

__all__: list[str]
