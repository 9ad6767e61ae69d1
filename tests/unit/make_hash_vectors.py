"""Writes hash_vectors.h with the reference implementation.

`pip install xxhash`, then `python make_hash_vectors.py > hash_vectors.h`.
"""

import xxhash

LEAF = 256 << 10
LENGTHS = sorted(
    set(range(36))
    | set(range(63, 67))
    | {80, *range(95, 99), 100, 112, 126, 127, 128, 129, 130, 143, 144, 145, 159, 160, 161, 176, 191, 192, 193}
    | {207, 208, 209, 223, 224, 225, *range(238, 243), 255, 256, 257, 319, 320, 321, 384, 511, 512, 513, 1000}
    | {1023, 1024, 1025, 1087, 1088, 1089, 1151, 1152, 1153, 2047, 2048, 2049, 2112, 3000, 4096, 10007, 65536, 65537}
    | {LEAF - 1, LEAF, LEAF + 1}
)
CONTENTS = [0, 1, 240, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 2 * LEAF + 5, 31 * LEAF + 100]


def content(size: int) -> bytes:
    return bytes(((i + 1) * 0x9E3779B1 & 0xFFFFFFFF) >> 24 for i in range(size))


def halves(digest: int) -> str:
    return f"0x{digest & (1 << 64) - 1:016x}u, 0x{digest >> 64:016x}u"


def main() -> None:
    data = content(max(*LENGTHS, *CONTENTS))
    origin = "Made by make_hash_vectors.py with the xxhash package."
    print(f"// {origin} Byte i of the content is the top byte of (i + 1) * 0x9E3779B1 modulo 2^32.")
    print("static const struct {\n    size_t bytes;\n    uint64_t h64, low, high;\n} hash_vectors[] = {")
    for size in LENGTHS:
        part = data[:size]
        print(f"    {{{size}, 0x{xxhash.xxh3_64_intdigest(part):016x}u, {halves(xxhash.xxh3_128_intdigest(part))}}},")
    print("};\n\n// Content hashes: XXH3-128 of the XXH3-64 of all leaves.")
    print("static const struct {\n    size_t bytes;\n    uint64_t low, high;\n} content_vectors[] = {")
    for size in CONTENTS:
        leaves = (xxhash.xxh3_64_intdigest(data[at : min(at + LEAF, size)]) for at in range(0, size, LEAF))
        print(f"    {{{size}, {halves(xxhash.xxh3_128_intdigest(b''.join(h.to_bytes(8, 'little') for h in leaves)))}}},")
    print("};")


main()
