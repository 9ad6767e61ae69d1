#include "master/votes.h"

void votes_open(struct votes *votes, struct desk *desk, struct desk_peer *peer, uint8_t kind) {
    peer->vote = kind;
    peer->waits_since = desk->now_ns;
    votes->open[kind]++;
    votes->opened = true;
}

void votes_close(struct votes *votes, struct desk_peer *peer) {
    if (peer->vote != 0) votes->open[peer->vote]--;
    peer->vote = 0;
}

bool votes_all(const struct votes *votes, const struct desk *desk, uint8_t kind) {
    return votes->open[kind] == desk->count;
}

void votes_end(struct votes *votes, struct desk *desk, uint8_t kind) {
    for (uint32_t i = 0; i < desk->count; i++) desk->order[i]->vote = 0;
    votes->open[kind] = 0;
    votes->barrier++;
}

void votes_outcome(struct votes *votes, struct desk *desk, uint8_t kind, uint8_t code, uint64_t value) {
    struct wire_outcome outcome = {kind, code, value};
    size_t begin = actions_begin(&desk->actions);
    wire_encode_outcome(&desk->actions.bytes, desk_header(desk), &outcome);
    desk_send_members(desk, begin);
    votes_end(votes, desk, kind);
}
