"""Errors: texts, classes, and what survives a pickle."""

import pickle
import re

import numpy as np
import pytest

import pccl
from pccl import PCCLError, Result
from pccl._core.errors import error_for

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
    assert str(error) == f"something: what happened ({result.name})"


@pytest.mark.parametrize(("result", "kind"), CLASSES)
def test_an_error_without_a_detail_says_what_its_code_means(result, kind):
    text = str(error_for(result.value, "pcclAllReduce"))
    assert re.fullmatch(rf"all_reduce: [^:]+ \({result.name}\)", text), text
    assert text.count(result.name) == 1


NAMES = [
    ("pcclAllReduceMultipleWithRetry", "all_reduce_multiple_with_retry"),
    ("pcclSynchronizeSharedState", "sync_shared_state"),
    ("pcclAwaitAsyncReduce", "wait"),
    ("pcclGetAttribute", "get_attribute"),
    ("pccl_ext_posted", "posted"),
    ("reduce-scatter", "reduce_scatter"),
    ("recv", "recv"),
]


@pytest.mark.parametrize(("c_name", "name"), NAMES)
def test_a_text_has_the_python_name(c_name, name):
    assert str(error_for(4, c_name, "what happened")) == f"{name}: what happened (INVALID_USAGE)"


def test_a_detail_of_c_names_python_functions():
    assert "call connect first" in str(error_for(4, "pcclAllReduce", "call pcclConnect first"))
    assert "9 is no pcclDataType_t" in str(error_for(3, "pcclAllReduce", "9 is no pcclDataType_t"))  # no function


def test_no_call_of_the_package_names_a_c_function(capfd):
    array = np.ones(3, np.float32)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "a")])
    comm = pccl.Communicator("127.0.0.1:1")
    calls = [
        lambda: comm.all_reduce(array, op=pccl.ReduceOp.SUM),
        lambda: comm.all_reduce_async(array, op=pccl.ReduceOp.SUM),
        lambda: comm.sync_shared_state(state),
        lambda: comm.world_size,
        lambda: comm.rank,
        lambda: comm.members,
        lambda: comm.barrier(),
        lambda: comm.broadcast(array),
        lambda: comm.connect(1),
        comm.update_topology,
        comm.are_peers_pending,
        comm.optimize_topology,
        comm.links,
        comm.diagnose,
    ]
    for call in calls:
        with pytest.raises(PCCLError) as caught:
            call()
        text = str(caught.value)
        assert re.fullmatch(rf"[a-z_]+: .+ \({caught.value.result.name}\)", text), text
        assert "pccl" not in text
        assert text.count(caught.value.result.name) == 1


def test_wrong_arguments_are_value_errors_and_the_assertions_of_pccl_1():
    comm = pccl.Communicator("127.0.0.1:1")
    for kind in (ValueError, AssertionError, pccl.ArgumentError):
        with pytest.raises(kind, match="sizes must be equal"):
            comm.all_reduce(np.ones(3, np.float32), np.ones(4, np.float32), op=pccl.ReduceOp.SUM)
        with pytest.raises(kind, match="no port"):
            pccl.Communicator("127.0.0.1")
    assert not issubclass(pccl.ArgumentError, PCCLError)


def test_one_error_for_a_process_that_cannot_join():
    torch = pytest.importorskip("torch")
    del torch
    import pccl.diloco
    import pccl.distributed

    assert pccl.JoinError is pccl.diloco.JoinError is pccl.distributed.JoinError
    assert issubclass(pccl.JoinError, PCCLError)
    assert issubclass(pccl.JoinError, RuntimeError)
    for name in pccl.distributed.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(pccl.distributed, name), PCCLError), name
    lost = pccl.distributed.PeerLostError("all_reduce", "rank 1 is gone", (1,), ())
    copy = pickle.loads(pickle.dumps(lost))
    assert (str(copy), copy.ranks) == (str(lost), (1,))


def test_a_timeout_is_a_timeout_error():
    assert isinstance(error_for(Result.TIMED_OUT.value, "f"), TimeoutError)


def test_check():
    assert PCCLError.check(0, "pcclInit") is None
    with pytest.raises(PCCLError) as caught:
        PCCLError.check(Result.PENDING_ASYNC_OPS.value, "pcclUpdateTopology")
    assert caught.value.result is Result.PENDING_ASYNC_OPS
    with pytest.raises(ValueError, match="99"):
        PCCLError.check(99, "pcclInit")


ERRORS = [error_for(13, "f", "d"), error_for(8, "f", "d"), pccl.ConnectError(Result(6), "f", "d"), pccl.JoinError("d")]


@pytest.mark.parametrize("error", ERRORS)
def test_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.result, copy.detail) == (type(error), str(error), error.result, error.detail)


def test_failed_connect_has_the_text_that_programs_look_for():
    assert str(pccl.ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect")) == "Failed to connect to the master node"
    error = pccl.ConnectError(Result.MASTER_CONNECTION_FAILED, "pcclConnect", "10.0.0.1:1:\nrefused")
    assert (
        str(error) == "connect: Failed to connect to the master node: 10.0.0.1:1: refused (MASTER_CONNECTION_FAILED)"
    )  # one line


def test_errors_name_the_call_that_the_program_has_made():
    with pccl.Communicator("127.0.0.1:1") as comm:
        calls = {
            "rank": lambda: comm.rank,
            "world_size": lambda: comm.world_size,
            "global_world_size": lambda: comm.global_world_size,
            "leaving": lambda: comm.leaving,
            "members": lambda: comm.members,
            "wait_for_peers": lambda: comm.wait_for_peers(2),
            "get_attribute": lambda: comm.get_attribute(pccl.Attribute.LOCAL_WORLD_SIZE),
        }
        for name, call in calls.items():
            with pytest.raises(pccl.UsageError, match=f"^{name}: the communicator is not connected"):
                call()


def test_the_codes_of_state_errors_say_what_their_texts_say():
    assert str(pccl.ParityError("b differs")) == "check_parity: b differs (STATE_DIFFERS)"
    assert str(pccl.StateLostError("the state is lost")) == "restore: the state is lost (STATE_LOST)"


def test_a_failed_connect_says_so_once():
    with pytest.raises(pccl.ConnectError) as caught:
        pccl.Communicator("127.0.0.1:1").connect(1)
    text = str(caught.value)
    assert text.startswith("connect: Failed to connect to the master node (is it running?) at 127.0.0.1:1: "), text
    assert "cannot connect" not in text
