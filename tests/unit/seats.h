// For a test of one subject of the master's state machine: a table with peers, which are letters. Their connections are
// numbers ('a' = 0), their join numbers ascend, their hosts differ.
#ifndef PCCL_TESTS_SEATS_H
#define PCCL_TESTS_SEATS_H

#include "check.h"
#include "master/membership.h"

static struct membership table;
static struct peer_record *peers[26];

static struct peer_record *peer(char letter) { return peers[letter - 'a']; }

static struct peer_record *come(char letter, uint32_t group) {
    struct wire_member member = {.id = {{(uint8_t)letter, 1, 2, 3}},
                                 .join_number = table.peer_count + 1,
                                 .group = group,
                                 .lanes = 1,
                                 .address = {.family = 4, .bytes = {10, 0, 0, (uint8_t)letter}, .port = 999}};
    return peers[letter - 'a'] = membership_add(&table, (uint32_t)(letter - 'a'), &member);
}

// Members of one group, in ring order; groups ascend.
static void seat(const char *letters, uint32_t group) {
    for (; *letters; letters++) {
        struct peer_record *member = come(*letters, group);
        member->accepted = true;
        member->group = membership_ensure_group(&table, group);
        table.order[table.count++] = member;
    }
    membership_rank(&table);
}

static inline void open_membership(const char *name, const char *members) {
    check_case("%s", name);
    membership_init(&table, SECOND_NS, 7, 1000 * SECOND_NS);
    seat(members, 0);
}

static inline void close_membership(void) {
    membership_fini(&table);
    check_case("%s", "");
}

// Who was sent a frame of that type since the last hush, in the order of the sends.
static inline const char *told(enum wire_type type) {
    static char letters[256];
    size_t count = 0;
    for (size_t i = 0; i < table.actions.send_count; i++) {
        struct wire_header header;
        CHECK(wire_header_decode(table.actions.bytes.bytes + table.actions.sends[i].offset, &header));
        if (header.type == type) letters[count++] = (char)('a' + table.actions.sends[i].conn);
    }
    letters[count] = 0;
    return letters;
}

// The body of the last frame of that type.
static inline const uint8_t *last_body(enum wire_type type, size_t *length) {
    *length = 0;
    for (size_t i = table.actions.send_count; i-- > 0;) {
        const uint8_t *frame = table.actions.bytes.bytes + table.actions.sends[i].offset;
        struct wire_header header;
        REQUIRE(wire_header_decode(frame, &header));
        *length = header.length;
        if (header.type == type) return frame + WIRE_HEADER_BYTES;
    }
    REQUIRE(!(bool)"such a frame was sent");
    return NULL;
}

static inline void hush(void) { actions_clear(&table.actions); }

// Those that are gone, by letter.
static inline const char *gone(void) {
    static char letters[27];
    size_t count = 0;
    for (char letter = 'a'; letter <= 'z'; letter++)
        if (peer(letter) != NULL && peer(letter)->gone) letters[count++] = letter;
    letters[count] = 0;
    return letters;
}

#endif
