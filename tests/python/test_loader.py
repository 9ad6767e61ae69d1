"""The raw module: PCCL's own Python code runs on it (contract 3.1)."""

import re
from pathlib import Path

import pytest

from pccl._native import ffi, lib

FUNCTIONS = [
    "pcclInit",
    "pcclGetBuildInfo",
    "pcclCreateCommunicator",
    "pcclConnect",
    "pcclDestroyCommunicator",
    "pcclGetAttribute",
    "pcclUpdateTopology",
    "pcclArePeersPending",
    "pcclOptimizeTopology",
    "pcclAllReduce",
    "pcclAllReduceAsync",
    "pcclAwaitAsyncReduce",
    "pcclAllReduceMultipleWithRetry",
    "pcclAllReduceEx",
    "pcclAwaitAsyncReduceEx",
    "pcclGetReduceContributors",
    "pcclSynchronizeSharedState",
    "pcclMarkSharedStateRestored",
    "pcclCreateMaster",
    "pcclRunMaster",
    "pcclInterruptMaster",
    "pcclMasterAwaitTermination",
    "pcclDestroyMaster",
    "pcclDetachMaster",
]

SIZES = {
    "ccoip_ipv4_address_t": 4,
    "ccoip_ipv6_address_t": 16,
    "ccoip_inet_address_t": 24,
    "ccoip_socket_address_t": 28,
    "pcclCommCreateParams_t": 36,
    "pcclReduceInfo_t": 24,
    "pcclReduceOperandDescriptor_t": 8,
    "pcclQuantizationOptions_t": 8,
    "pcclReduceDescriptor_t": 40,
    "pcclReduceOpDescriptor_t": 56,
    "pcclAsyncReduceOp_t": 16,
    "pcclRankUuid_t": 16,
    "pcclReduceOptions_t": 64,
    "pcclReduceRange_t": 32,
    "pcclTensorInfo_t": 40,
    "pcclSharedState_t": 24,
    "pcclSharedStateSyncInfo_t": 16,
    "pcclBuildInfo_t": 1,
    "pcclDiagnosisMember_t": 272,
    "pcclDiagnosisEdge_t": 136,
    "pcclDiagnosisDeparture_t": 232,
    "pcclDiagnosis_t": 120,
}


def test_functions():
    assert len(FUNCTIONS) == 24
    for name in FUNCTIONS:
        assert callable(getattr(lib, name)), name


@pytest.mark.parametrize("name", SIZES)
def test_types(name):
    assert ffi.sizeof(name) == SIZES[name]
    assert ffi.new(f"{name}*") != ffi.NULL


@pytest.mark.parametrize("name", ["pcclComm_t", "pcclMasterInstance_t", "pcclRankInfo_t"])
def test_opaque_types(name):
    assert ffi.new(f"{name}**")[0] == ffi.NULL


def test_every_enumerator_of_the_headers():
    folder = Path(__file__).parents[2] / "csrc" / "include"
    text = "".join((folder / name).read_text() for name in ("pccl.h", "ccoip_inet.h"))
    found = re.findall(r"\b((?:pccl|PCCL_|inet)\w+) = (\d+)", text)
    assert len(found) == 71
    for name, value in found:
        assert getattr(lib, name) == int(value), name


def test_the_way_pccl_uses_it():
    params = ffi.new("pcclCommCreateParams_t*")
    params.master_address = {
        "inet": {"protocol": lib.inetIPv4, "ipv4": {"data": [127, 0, 0, 1]}},
        "port": 1,
    }
    params.peer_group = ffi.cast("uint32_t", 0)
    comm = ffi.new("pcclComm_t**")
    assert lib.pcclInit() == lib.pcclSuccess
    assert lib.pcclCreateCommunicator(params, comm) == 0
    out = ffi.new("int*")
    assert lib.pcclGetAttribute(comm[0], 1, out) == lib.pcclInvalidUsage
    infos = ffi.new("pcclTensorInfo_t[]", 1)
    infos[0].datatype = ffi.cast("pcclDataType_t", 10)
    infos[0].data = ffi.cast("void*", 16)
    state = ffi.new("pcclSharedState_t*", {"revision": 0, "count": ffi.cast("size_t", 1), "infos": infos})
    assert state[0].revision == 0
    assert isinstance(state, ffi.CData)
    assert lib.pcclDestroyCommunicator(comm[0]) == 0
    address = ffi.new("ccoip_socket_address_t*")
    master = ffi.new("pcclMasterInstance_t**")
    assert lib.pcclCreateMaster(address[0], master) == 0
    assert lib.pcclDestroyMaster(master[0]) == 0
