"""What the sources of the core keep to, where a compiler does not see to it."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
CUDA = CSRC.with_name("cuda")

OPENERS = (
    "socket|socketpair|accept4?|epoll_create1?|eventfd|signalfd|timerfd_create|inotify_init1?|pidfd_open|memfd_create|userfaultfd"
    "|open|openat|creat|fopen|fdopen|opendir|pipe2?|dup[23]?|close|fclose|closedir|popen|mkstemp"
)
BARE = re.compile(rf"(?<![\w.>])({OPENERS})\(")
BY_NUMBER = re.compile(r"\b(SYS|__NR)_\w+|F_DUPFD|SO_PEERPIDFD|SCM_RIGHTS")


def code_of(path: Path) -> list[str]:
    """The lines, without what stands in comments and strings."""
    return [re.sub(r'"(\\.|[^"\\])*"|//.*', "", line) for line in path.read_text().splitlines()]


def sources_of(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((CSRC / folder).glob("*.c")))


@pytest.mark.skipif(not CSRC.is_dir(), reason="the sources are not here")
def test_descriptors_are_opened_and_closed_in_one_place():
    """One that csrc/base/descriptor.c does not know stays open in forked children, and hides the death of their parent."""
    found = [
        f"{path.relative_to(CSRC.parent)}:{number}: {line.strip()}"
        for path in sorted((*CSRC.rglob("*.[ch]"), *CUDA.rglob("*.[ch]")))
        if path.name != "descriptor.c"
        for number, line in enumerate(code_of(path), 1)
        # Between these two stands what has no function of its own in descriptor.h.
        if (BARE.search(line) or BY_NUMBER.search(line)) and "descriptor_end(" not in line
    ]
    assert not found, "use csrc/base/descriptor.h:\n" + "\n".join(found)


@pytest.mark.skipif(not CSRC.is_dir(), reason="the sources are not here")
def test_every_call_asks_whose_handle_it_is():
    """A forked child that uses a handle of its parent meets threads that are gone, and locks that nobody will give back."""
    signature = r"^(?:static )?pcclResult_t (\w+)\(([^;{]*)\) "
    functions = re.findall(signature + r"(\{ [^\n]*|\{\n.*?^\})", sources_of("api"), re.MULTILINE | re.DOTALL)
    handle = r"pcclComm_t \*comm\b|pcclMasterInstance_t \*master\b|pcclAsyncReduceOp_t \*reduce_handle\b"
    ask = r"REQUIRE_COMM|REQUIRE_MASTER|api_is_own"
    asking = [name for name, _, body in functions if re.search(ask, body)]
    public = [(name, body) for name, parameters, body in functions if name.startswith("pccl") and re.search(handle, parameters)]
    assert len(public) > 20
    passed_on = rf"\b({'|'.join(asking)})\((?:\w+, )*(comm|master)\b"
    found = [name for name, body in public if name not in asking and not re.search(passed_on, body)]
    assert not found, "begin with REQUIRE_COMM or REQUIRE_MASTER: " + ", ".join(found)
