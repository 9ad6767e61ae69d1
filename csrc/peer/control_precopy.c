#include "peer/control_private.h"

static void try_donor(struct control_precopy *p, struct communicator *c, struct wireup *wireup, int64_t now) {
    p->copied = p->tried == p->donors.count;
    if (p->copied || wireup == NULL) return;
    const struct wire_donor *donor = &p->donors.donors[p->tried++];
    wireup_dial(wireup, WIRE_LINK_PRECOPY, &donor->id, 0, &donor->reach, now + member_link_limit_ns(c->core));
}

void control_precopy_begin(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                           const struct wire_donors *donors, int64_t now) {
    p->donors = *donors;
    p->tried = 0;
    try_donor(p, c, wireup, now);
}

void control_precopy_take(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                          struct transport *stream, int64_t now) {
    if (stream != NULL && stream->role == TRANSPORT_ACCEPTS)
        precopy_give(c->precopy, stream);
    else if (member_phase(c->core) != MEMBER_REGISTERED)
        transport_free(stream); // too late
    else if (stream == NULL || !precopy_receive(c->precopy, stream, c->wake))
        try_donor(p, c, wireup, now);
}

enum precopy_news control_precopy_news(struct control_precopy *p, struct communicator *c, struct wireup *wireup,
                                       struct wire_progress *progress, int64_t now) {
    if (wireup == NULL || member_phase(c->core) != MEMBER_REGISTERED) return PRECOPY_QUIET;
    enum precopy_news news = precopy_take_news(c->precopy, progress);
    if (news == PRECOPY_LOST) try_donor(p, c, wireup, now);
    if (p->copied) {
        p->copied = false;
        return PRECOPY_UP_TO_DATE;
    }
    return news == PRECOPY_LOST ? PRECOPY_QUIET : news;
}
