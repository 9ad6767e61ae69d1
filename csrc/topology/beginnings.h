// When each member of a group begins its ops, from differences between pairs of them. Pure.
#ifndef PCCL_TOPOLOGY_BEGINNINGS_H
#define PCCL_TOPOLOGY_BEGINNINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct beginnings_pair {
    uint16_t from, to;
    double later; // by how much `to` begins later than `from`
};

// Writes to `out`, for each of `members`, how much later than the earliest one it begins. False, and zeros: some member
// is in no pair that leads there, or memory was refused.
bool beginnings_place(const struct beginnings_pair *pairs, size_t count, uint16_t members, double *out);

#endif
