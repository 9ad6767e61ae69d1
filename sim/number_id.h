// Ids of many peers that are told by a number.
#ifndef PCCL_SIM_NUMBER_ID_H
#define PCCL_SIM_NUMBER_ID_H

#include <string.h>

#include "net/wire_control.h"

static inline struct wire_id number_id(uint32_t number) {
    struct wire_id id = {{0}};
    uint64_t spread = (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
    memcpy(id.bytes, &spread, sizeof spread);
    memcpy(id.bytes + 8, &number, sizeof number);
    return id;
}

static inline uint32_t number_of_id(const struct wire_id *id) {
    uint32_t number;
    memcpy(&number, id->bytes + 8, sizeof number);
    return number;
}

#endif
