#include "peer/departed.h"

#include <stdio.h>

#include "net/peer_name.h"

enum { NAMED = 3 }; // in one text

void departed_note(struct departed *departed, const struct wire_id *id, const struct wire_name *name, uint64_t epoch) {
    uint32_t place = departed->count++ % DEPARTED_MOST;
    departed->list[place].id = *id;
    departed->list[place].name = *name;
    departed->list[place].epoch = epoch;
}

static uint32_t kept(const struct departed *departed) {
    return departed->count < DEPARTED_MOST ? departed->count : DEPARTED_MOST;
}

const struct wire_name *departed_name(const struct departed *departed, const struct wire_id *id) {
    for (uint32_t i = 0; i < kept(departed); i++)
        if (wire_id_equal(&departed->list[i].id, id)) return &departed->list[i].name;
    return NULL;
}

uint32_t departed_tell(const struct departed *departed, uint64_t after, char *out, size_t capacity) {
    uint32_t told = 0, room = kept(departed);
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = departed->count - room; i != departed->count; i++) {
        uint32_t place = i % DEPARTED_MOST;
        if (departed->list[place].epoch <= after || told++ >= NAMED) continue;
        at += (size_t)snprintf(out + at, capacity - at, "%s%s", at > 0 ? ", " : "",
                               peer_label(&departed->list[place].id, &departed->list[place].name).chars);
        if (at >= capacity) at = capacity - 1;
    }
    if (told > NAMED) snprintf(out + at, capacity - at, " and %u more", told - NAMED);
    return told;
}
