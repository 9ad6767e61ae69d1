"""Checkpoints: what they hold, how they are written, and what happens to damaged ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from pccl.state import CheckpointError, TreeError, load, save
from pccl.state._local import checkpoint

TREE: dict[str, Any] = {
    "model": {"layer.weight": torch.arange(12.0).reshape(3, 4), "empty": torch.zeros(0), "scalar": torch.tensor(3.5)},
    "low": [torch.ones(2, dtype=torch.bfloat16), (float("inf"), {1: {2, 3}, None: b"x"})],
    "fp8": torch.ones(4).to(torch.float8_e4m3fn),
    "complex": torch.full((2,), 1 + 2j),
    "strided": torch.arange(6.0).reshape(2, 3).t(),
    "array": np.arange(3),
    "step": 7,
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    return bool(one == other)


def test_a_tree_comes_back(tmp_path: Path) -> None:
    save(TREE, tmp_path / "new" / "point")
    assert same(load(tmp_path / "new" / "point"), TREE)


def test_torch_reads_it(tmp_path: Path) -> None:
    save(TREE, tmp_path / "point")
    found = {"model": {"layer.weight": torch.zeros(3, 4)}}
    dcp.load(found, checkpoint_id=tmp_path / "point", no_dist=True)
    assert found["model"]["layer.weight"].equal(TREE["model"]["layer.weight"])
    dcp_to_torch_save(tmp_path / "point", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")
    assert whole["model"]["layer.weight"].equal(TREE["model"]["layer.weight"])


def test_names_that_meet(tmp_path: Path) -> None:
    tree = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1), "pccl": torch.full((1,), 2.0), "": torch.full((1,), 3.0)}
    save(tree, tmp_path / "point")
    assert same(load(tmp_path / "point"), tree)


def test_a_newer_one_replaces_it(tmp_path: Path) -> None:
    for step in range(3):
        save({"step": step, "x": torch.full((3,), float(step))}, tmp_path / "point")
    assert load(tmp_path / "point")["step"] == 2
    assert os.listdir(tmp_path) == ["point"]


def test_what_cannot_be_saved_leaves_the_old_one(tmp_path: Path) -> None:
    save({"step": 1}, tmp_path / "point")
    with pytest.raises(TreeError, match=r"deep\.object"):
        save({"deep": {"object": object()}}, tmp_path / "point")
    assert load(tmp_path / "point") == {"step": 1}
    assert os.listdir(tmp_path) == ["point"]


CRASHES = ["dcp.save", "rename 1", "rename 2", "sync", "exchange"]


def crash(path: Path, where: str) -> None:
    """Saves, and dies at a place in the middle."""

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    renames = 0
    rename = Path.rename

    def counted(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        return die() if where == f"rename {renames}" else rename(self, target)  # type: ignore[return-value]

    if where == "dcp.save":
        dcp.FileSystemWriter.finish = die  # type: ignore[method-assign]
    elif where == "exchange":
        checkpoint._exchanged = die  # type: ignore[assignment]
    elif where.startswith("rename"):  # as on file systems that cannot exchange names
        checkpoint._exchanged = lambda *_: False
    elif where == "sync":
        checkpoint._sync_folder = die
    Path.rename = counted  # type: ignore[assignment,method-assign]
    save({"step": 2, "x": torch.ones(1000)}, path)


@pytest.mark.parametrize("where", CRASHES)
def test_a_crash_leaves_the_last_good_one(tmp_path: Path, where: str) -> None:
    save({"step": 1, "x": torch.zeros(1000)}, tmp_path / "point")
    process = multiprocessing.get_context("fork").Process(target=crash, args=(tmp_path / "point", where))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert load(tmp_path / "point")["step"] == 1
    save({"step": 3}, tmp_path / "point")
    assert load(tmp_path / "point") == {"step": 3}
    assert os.listdir(tmp_path) == ["point"]


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        load(tmp_path / "point")


def test_one_of_another_program(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "point", no_dist=True)
    with pytest.raises(CheckpointError, match="was not written by pccl"):
        load(tmp_path / "point")
    (tmp_path / "file").write_bytes(b"no checkpoint")
    (tmp_path / "empty").mkdir()
    for name in ("file", "empty"):
        with pytest.raises(CheckpointError, match="cannot read"):
            load(tmp_path / name)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_one_that_is_damaged(tmp_path: Path, name: str) -> None:
    """Cut at many places, and with changed bytes: either an error, or the very content."""
    save(TREE, tmp_path / "point")
    file = tmp_path / "point" / name
    whole = file.read_bytes()
    seen = 0
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        for content in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            file.write_bytes(content)
            try:
                found = load(tmp_path / "point")
            except CheckpointError:
                seen += 1
            else:
                assert same(found, TREE)
    assert seen > 20


@pytest.mark.parametrize("file", ["work", "work/notes"])
def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("mine")
    with pytest.raises(FileExistsError, match="is not a checkpoint, and would be lost; name a folder"):
        save({"step": 1}, tmp_path / "work")
    assert (tmp_path / file).read_text() == "mine"
    assert os.listdir(tmp_path) == ["work"]


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "home" / "point"
    for folder in (disk, link.parent):
        folder.mkdir()
    link.symlink_to(disk / "point")
    for step in range(2):
        save({"step": step}, link)
    assert link.is_symlink()
    assert load(link) == {"step": 1}
    assert (os.listdir(disk), os.listdir(link.parent)) == (["point"], ["point"])


def test_a_tree_that_is_too_deep(tmp_path: Path) -> None:
    tree: dict[str, Any] = {}
    tree["self"] = tree
    with pytest.raises(TreeError, match="nested more than 100 deep"):
        save(tree, tmp_path / "point")
