"""Names of peers in texts."""

from uuid import UUID

from pccl._core.names import with_ranks

ONE, OTHER = UUID(int=0xAB12CDEF << 96), UUID(int=0xFE << 120)


def test_texts_of_c_get_the_ranks_of_a_group():
    text = (
        "peer host-a (ab12cdef, rank 4, join 5) in all_reduce, peer fe000000 (rank 7, join 8), peer x (00000001, rank 2, join 3)"
    )
    assert with_ranks(text, [ONE, OTHER], {ONE: "host-a"}) == (
        "rank 0 (host-a, ab12cdef) in all_reduce, rank 1, peer x (00000001, rank 2, join 3)"
    )
    assert with_ranks("peer host-a (ab12cdef, rank 4) has not started it", [ONE], {ONE: "host-a"}) == (
        "rank 0 (host-a, ab12cdef) has not started it"
    )
