#include "net/wire_matrix.h"

#include "net/peer_name.h"

static void visit_double(struct cursor *c, double *value) {
    uint64_t bits = 0;
    if (c->writes) memcpy(&bits, value, sizeof bits);
    cursor_u64(c, &bits);
    if (!c->writes) memcpy(value, &bits, sizeof bits);
}

void wire_visit_program_number(struct cursor *c, char *name, double *value) {
    uint8_t length = wire_visit_chars(c, name, 1, WIRE_MAX_NUMBER_NAME);
    if (cursor_judges(c)) cursor_expect(c, wire_is_number_name(name, length));
    visit_double(c, value);
}

// Measurements, in fields that follow each other: at most WIRE_MOST_SEEN, or -1 for none.
static void visit_amounts(struct cursor *c, double *first, double *last) {
    for (; first <= last; first++) {
        visit_double(c, first);
        cursor_expect(c, (*first >= 0 && *first <= (double)WIRE_MOST_SEEN) || *first == -1);
    }
}

static void visit_amount(struct cursor *c, double *amount) { visit_amounts(c, amount, amount); }

static void visit_uuid(struct cursor *c, pcclRankUuid_t *uuid) { cursor_bytes(c, uuid->data, sizeof uuid->data); }

// A name or an address, to be shown as it is.
static void visit_shown(struct cursor *c, char chars[WIRE_MAX_NAME + 1]) {
    uint8_t length = wire_visit_chars(c, chars, 0, WIRE_MAX_NAME);
    if (cursor_judges(c)) cursor_expect(c, peer_name_is_clean(chars, length));
}

static void visit_flag(struct cursor *c, bool *flag) {
    uint8_t value = *flag;
    cursor_range(c, &value, 0, 1);
    if (!c->writes) *flag = value == 1;
}

static void visit_enum(struct cursor *c, int *value, uint8_t most) {
    uint8_t number = (uint8_t)*value;
    cursor_range(c, &number, 0, most);
    if (!c->writes) *value = number;
}

static void visit_size(struct cursor *c, size_t *size, uint32_t most) {
    uint32_t count = (uint32_t)*size;
    cursor_count(c, &count, most);
    *size = count;
}

static void visit_matrix_member(struct cursor *c, pcclDiagnosisMember_t *member) {
    visit_uuid(c, &member->uuid);
    visit_shown(c, member->name);
    cursor_u64(c, &member->join_number);
    cursor_u32(c, &member->group);
    visit_shown(c, member->address);
    visit_amounts(c, &member->silent_s, &member->processor_s);
    wire_visit_number(c, &member->live);
    visit_amounts(c, &member->oldest_s, &member->still_s);
    cursor_u64(c, &member->state_revision);
    cursor_u64(c, &member->state_hash[0]);
    cursor_u64(c, &member->state_hash[1]);
    visit_flag(c, &member->synced);
    visit_flag(c, &member->state_replaced);
}

static void visit_matrix_edge(struct cursor *c, pcclDiagnosisEdge_t *edge, uint8_t *reason) {
    cursor_u32(c, &edge->member);
    cursor_u32(c, &edge->other);
    wire_visit_number(c, &edge->awaited);
    visit_amounts(c, &edge->acked_bytes, &edge->queue_s);
    visit_flag(c, &edge->by_memory);
    cursor_u32(c, &edge->lanes);
    cursor_u8(c, reason);
}

static void visit_matrix_joiner(struct cursor *c, pcclDiagnosisJoiner_t *joiner) {
    visit_uuid(c, &joiner->uuid);
    visit_shown(c, joiner->name);
    cursor_u32(c, &joiner->group);
    visit_shown(c, joiner->address);
    visit_enum(c, &joiner->joining, WIRE_JOINING_SPARE);
    wire_visit_number(c, &joiner->done);
    wire_visit_number(c, &joiner->total);
    cursor_expect(c, joiner->done <= joiner->total);
    visit_amounts(c, &joiner->progress_s, &joiner->wait_s);
}

static void visit_departure(struct cursor *c, pcclDiagnosisDeparture_t *departure) {
    visit_uuid(c, &departure->uuid);
    visit_shown(c, departure->name);
    cursor_u32(c, &departure->group);
    cursor_u32(c, &departure->rank);
    visit_enum(c, &departure->reason, WIRE_LOSS_ENDED);
    visit_amount(c, &departure->ago_s);
    wire_visit_why(c, departure->why);
}

void wire_visit_matrix(struct cursor *c, struct wire_matrix *m) {
    pcclDiagnosis_t *told = &m->told;
    cursor_u16(c, &m->version);
    if (!c->writes)
        *told = (pcclDiagnosis_t){.members = m->members,
                                  .edges = m->edges,
                                  .numbers = m->numbers,
                                  .joiners = m->joiners,
                                  .departures = m->departures};
    if (cursor_judges(c) && m->version != WIRE_VERSION) { // whatever follows
        c->at = c->end;
        return;
    }
    visit_amount(c, &told->heartbeat_limit_s);
    visit_flag(c, &told->counts_only);
    cursor_u32(c, &told->peer_count);
    cursor_u64(c, &told->epoch);
    cursor_u64(c, &told->generation);
    cursor_u64(c, &told->votes);
    visit_size(c, &told->member_count, WIRE_MAX_MEMBERS);
    cursor_expect(c, told->peer_count <= WIRE_MAX_MEMBERS);
    cursor_expect(c, told->member_count == (told->counts_only ? 0 : told->peer_count));
    WIRE_EACH(c, i, told->member_count) visit_matrix_member(c, &m->members[i]);
    visit_size(c, &told->edge_count, WIRE_MAX_EDGES);
    WIRE_EACH(c, i, told->edge_count) {
        const pcclDiagnosisEdge_t *edge = &m->edges[i];
        visit_matrix_edge(c, &m->edges[i], &m->reasons[i]);
        cursor_expect(c, edge->member < told->member_count && edge->other < told->member_count);
        cursor_expect(c, edge->member != edge->other);
    }
    visit_size(c, &told->number_count, WIRE_MAX_NUMBERS_TOLD);
    WIRE_EACH(c, i, told->number_count) {
        cursor_u32(c, &m->numbers[i].member);
        cursor_expect(c, m->numbers[i].member < told->member_count);
        wire_visit_program_number(c, m->numbers[i].name, &m->numbers[i].value);
    }
    visit_size(c, &told->joiner_count, told->counts_only ? 0 : WIRE_MAX_JOINERS);
    WIRE_EACH(c, i, told->joiner_count) visit_matrix_joiner(c, &m->joiners[i]);
    visit_size(c, &told->departure_count, told->counts_only ? 0 : WIRE_MAX_DEPARTURES);
    cursor_expect(c, told->member_count + told->departure_count <= WIRE_MAX_MEMBERS); // so that all fits a frame
    WIRE_EACH(c, i, told->departure_count) visit_departure(c, &m->departures[i]);
}
