"""The public names of `pccl.diloco`, and where they are defined."""

from pccl._core.errors import JoinError as JoinError
from pccl.diloco._async import AsyncDiLoCo as AsyncDiLoCo
from pccl.diloco._base import Round as Round
from pccl.diloco._compression import Compression as Compression
from pccl.diloco._diloco import DiLoCo as DiLoCo
from pccl.diloco._streaming import StreamingDiLoCo as StreamingDiLoCo

__all__: list[str]
