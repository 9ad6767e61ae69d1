"""Errors: texts, classes, and what survives a pickle."""

import pickle

import pytest

import pccl
from pccl import PCCLError, Result
from pccl._errors import error_for

CLASSES = [
    (Result.NOT_INITIALIZED, pccl.UsageError),
    (Result.INTERNAL_ERROR, pccl.SystemRefusedError),
    (Result.INVALID_ARGUMENT, pccl.UsageError),
    (Result.INVALID_USAGE, pccl.UsageError),
    (Result.TOO_FEW_PEERS, pccl.TooFewPeersError),
    (Result.MASTER_CONNECTION_FAILED, pccl.ConnectionFailedError),
    (Result.RANK_CONNECTION_FAILED, pccl.ConnectionFailedError),
    (Result.RANK_CONNECTION_LOST, pccl.PeerLostError),
    (Result.NO_SHARED_STATE_AVAILABLE, pccl.CallAgainError),
    (Result.PENDING_ASYNC_OPS, pccl.UsageError),
    (Result.UPDATE_TOPOLOGY_FAILED, pccl.CallAgainError),
    (Result.TOPOLOGY_OPTIMIZATION_FAILED, pccl.CallAgainError),
    (Result.TIMED_OUT, pccl.PCCLTimeoutError),
]


def test_text():
    error = PCCLError(Result.TOO_FEW_PEERS, "pcclAllReduce")
    assert str(error) == "pcclAllReduce failed with error: TOO_FEW_PEERS: TOO_FEW_PEERS"
    assert error.result is Result.TOO_FEW_PEERS
    assert error.detail == ""


@pytest.mark.parametrize(("result", "kind"), CLASSES)
def test_classes(result, kind):
    error = error_for(result.value, "pcclSomething", "what happened")
    assert type(error) is kind
    assert isinstance(error, PCCLError)
    assert (error.result, error.func_name, error.detail) == (result, "pcclSomething", "what happened")
    assert str(error) == f"pcclSomething failed with error: {result.name}: {result.name}: what happened"


def test_a_timeout_is_a_timeout_error():
    assert isinstance(error_for(Result.TIMED_OUT.value, "f"), TimeoutError)


def test_check():
    assert PCCLError.check(0, "pcclInit") is None
    with pytest.raises(PCCLError) as caught:
        PCCLError.check(Result.PENDING_ASYNC_OPS.value, "pcclUpdateTopology")
    assert caught.value.result is Result.PENDING_ASYNC_OPS
    with pytest.raises(ValueError, match="99"):
        PCCLError.check(99, "pcclInit")


@pytest.mark.parametrize("error", [error_for(13, "f", "d"), error_for(8, "f", "d"), pccl.ConnectError(Result(6), "f", "d")])
def test_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.result, copy.detail) == (type(error), str(error), error.result, error.detail)


def test_failed_connect_has_the_text_that_programs_look_for():
    assert str(pccl.ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect")) == "Failed to connect to the master node"
    error = pccl.ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", "10.0.0.1:1:\nrefused")
    assert str(error) == "Failed to connect to the master node: 10.0.0.1:1: refused"  # on one line
