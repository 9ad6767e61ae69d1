"""A pytest plugin: runs the tests in torchft's wheel with pccl's process group in the place of its gloo one."""

import torchft.process_group
from torchft import local_sgd_integ_test

import pccl.torchft


class Group(pccl.torchft.ProcessGroup):
    """Takes the arguments of ProcessGroupGloo."""


torchft.process_group.ProcessGroupGloo = Group
local_sgd_integ_test.ProcessGroupGloo = Group
