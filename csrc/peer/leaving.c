#include "peer/leaving.h"

#include <stddef.h>

#include "base/platform.h"

static int64_t moment(uint32_t within_ms, int64_t now) {
    return within_ms == WIRE_WITHIN_UNKNOWN ? INT64_MAX : now + within_ms * MS_NS;
}

void leaving_announce(struct leaving *l, uint32_t within_ms, bool at_update, int64_t now) {
    l->announced = true;
    l->at_update = at_update;
    l->at_ns = moment(within_ms, now);
}

void leaving_tell(const struct leaving *l, const struct wire_id *self, struct wire_header header, int64_t now,
                  struct wire_buffer *out) {
    if (!l->announced) return;
    int64_t left = (l->at_ns - now) / MS_NS;
    struct wire_leaving message = {.id = *self, .within_ms = WIRE_WITHIN_UNKNOWN, .at_update = l->at_update};
    if (l->at_ns != INT64_MAX) message.within_ms = left > 0 ? (uint32_t)left : 0;
    wire_encode_leaving(out, header, &message);
}

static struct leaving_member *find(const struct leaving *l, const struct wire_id *id) {
    for (uint32_t i = 0; i < l->count; i++)
        if (wire_id_equal(&l->others[i].id, id)) return (struct leaving_member *)&l->others[i];
    return NULL;
}

void leaving_note(struct leaving *l, const struct wire_leaving *told, const struct epoch *epoch, int64_t now) {
    struct leaving_member *member = find(l, &told->id);
    if (member == NULL && wire_member_with(epoch->everyone, epoch->count, &told->id) != NULL)
        member = &l->others[l->count++]; // so they are never too many
    if (member != NULL) *member = (struct leaving_member){told->id, moment(told->within_ms, now)};
}

bool leaving_take(struct leaving *l, const struct wire_id *self, const uint8_t *body, size_t length,
                  const struct epoch *epoch, int64_t now) {
    struct wire_leaving told;
    if (!wire_decode_leaving(body, length, &told)) return false;
    if (!l->announced && told.at_update && wire_id_equal(&told.id, self))
        leaving_announce(l, told.within_ms, true, now);
    leaving_note(l, &told, epoch, now);
    return true;
}

void leaving_enter(struct leaving *l, const struct epoch *epoch) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->count; i++)
        if (wire_member_with(epoch->everyone, epoch->count, &l->others[i].id) != NULL) l->others[kept++] = l->others[i];
    l->count = kept;
}
