// The fake transport, for tests that link it in by themselves.
#ifndef PCCL_TESTS_FAKES_TRANSPORT_H
#define PCCL_TESTS_FAKES_TRANSPORT_H

#include <stdint.h>

// Streams of contexts made from now on are carried by it; what it does follows from the seed and the order of calls.
void fake_transport_use(uint64_t seed);

#endif
