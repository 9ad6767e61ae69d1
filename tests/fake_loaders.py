"""What stands in for the iterator of a DataLoader whose workers read ahead."""

from __future__ import annotations

from collections import deque

from torch.utils.data import BatchSampler

from pccl.data import ElasticSampler


class FakeLoader:
    """The iterator of a DataLoader that draws so many batches ahead."""

    _auto_collation = True

    def __init__(self, sampler: ElasticSampler, batch: int, ahead: int, *, drop_last: bool = False) -> None:
        self.batch_size, self.drop_last = batch, drop_last
        self._num_yielded = 0
        self._num_workers = ahead
        self._index_sampler = BatchSampler(sampler, batch, drop_last)
        self._iterator = iter(self._index_sampler)
        self._queue: deque[list[int]] = deque()
        self._ahead = ahead

    def __iter__(self) -> FakeLoader:
        return self

    def __next__(self) -> list[int]:
        while len(self._queue) <= self._ahead:
            batch = next(self._iterator, None)
            if batch is None:
                break
            self._queue.append(batch)
        if not self._queue:
            raise StopIteration
        self._num_yielded += 1
        return self._queue.popleft()
