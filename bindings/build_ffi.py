"""Writes the C source of a module such as `pccl._native` from headers: `build_ffi.py MODULE OUT HEADER...`.

The declarations are taken from the headers and compiled against the same headers, so the two cannot drift apart.
"""

import re
import sys
from pathlib import Path

from cffi import FFI


def declarations(text: str) -> str:
    """What cffi can read of one of our headers: plain declarations, and the macros that are numbers."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", text, flags=re.DOTALL)
    numbers = re.findall(r"^#define (CCOIP_\w+) \d+\s*$", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\bPCCL_(EXPORT|NULLABLE)\b", "", text)
    return "".join(f"#define {name} ...\n" for name in numbers) + text


def main(module: str, out: str, headers: list[str]) -> None:
    ffi = FFI()
    ffi.cdef("".join(declarations(Path(header).read_text(encoding="utf-8")) for header in headers))
    includes = "".join(f'#include "{Path(header).resolve()}"\n' for header in headers)
    ffi.set_source(module, includes)
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
