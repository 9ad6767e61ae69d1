// For a test of the master's state machine without sockets. Peers are letters, their connections are numbers ('a' = 0).
// What the state machine sends is kept per connection, but for heartbeats, and taken in order. Such a test says which
// messages come, and that no other does.
#ifndef PCCL_TESTS_MAILBOXES_H
#define PCCL_TESTS_MAILBOXES_H

#include "check.h"
#include "master/core.h"

enum { PEERS = 40, INBOX = 512 };

struct frame {
    struct wire_header header;
    uint8_t *body;
};

static struct box {
    struct frame frames[INBOX];
    size_t head, tail;
    bool closed;
} boxes[PEERS];

static void post(const struct actions *actions) {
    for (size_t i = 0; i < actions->send_count; i++) {
        const struct actions_send *send = &actions->sends[i];
        struct box *box = &boxes[send->conn];
        REQUIRE(send->conn < PEERS && box->tail < INBOX);
        struct frame *frame = &box->frames[box->tail];
        CHECK(!box->closed);
        CHECK(wire_header_decode(actions->bytes.bytes + send->offset, &frame->header));
        CHECK_EQ(send->length, WIRE_HEADER_BYTES + frame->header.length);
        if (frame->header.type == WIRE_HEARTBEAT) continue;
        frame->body = malloc(frame->header.length + 1);
        memcpy(frame->body, actions->bytes.bytes + send->offset + WIRE_HEADER_BYTES, frame->header.length);
        box->tail++;
    }
    for (size_t i = 0; i < actions->close_count; i++) boxes[actions->closes[i]].closed = true;
}

static void clear(struct box *box) {
    for (size_t i = 0; i < box->tail; i++) free(box->frames[i].body);
    *box = (struct box){0};
}

// A check that nobody was sent more than was taken.
static void clear_all(void) {
    for (int c = 0; c < PEERS; c++) {
        if (boxes[c].head != boxes[c].tail)
            check_report(false, __FILE__, __LINE__, "%c was also sent %s", 'a' + c,
                         wire_type_name(boxes[c].frames[boxes[c].head].header.type));
        clear(&boxes[c]);
    }
}

static bool quiet(const char *peers) {
    bool all = true;
    for (; *peers; peers++) all &= boxes[*peers - 'a'].head == boxes[*peers - 'a'].tail;
    return all;
}

static const struct frame *take_at(int line, char peer, enum wire_type type) {
    struct box *box = &boxes[peer - 'a'];
    uint16_t got = box->head < box->tail ? box->frames[box->head].header.type : 0;
    check_report(got == type, __FILE__, line, "%c gets %s (got %s)", peer, wire_type_name((uint16_t)type),
                 wire_type_name(got));
    if (got != type) exit(check_status());
    return &box->frames[box->head++];
}
#define TAKE(peer, type) take_at(__LINE__, peer, type)

// The text tells of this; what ends a connection is followed by its end.
static inline void text_at(int line, char peer, enum wire_type type, const char *part) {
    const struct frame *frame = take_at(line, peer, type);
    struct wire_text text;
    char copy[WIRE_MAX_TEXT + 1] = {0};
    check_that(wire_decode_text(frame->body, frame->header.length, &text), __FILE__, line, "text decodes");
    memcpy(copy, text.chars, text.length);
    check_report(strstr(copy, part) != NULL, __FILE__, line, "\"%s\" speaks of \"%s\"", copy, part);
    check_that(boxes[peer - 'a'].closed == (type != WIRE_WAITING), __FILE__, line, "closed with the last words");
}
#define REFUSED(peer, part) text_at(__LINE__, peer, WIRE_REFUSED, part)
#define EXPELLED(peer, part) text_at(__LINE__, peer, WIRE_EXPELLED, part)

static struct wire_id id_of(char peer) { return (struct wire_id){{(uint8_t)peer, 1, 2, 3}}; }

static struct wire_address address_of(char peer) {
    return (struct wire_address){.family = 4, .bytes = {10, 0, 0, (uint8_t)peer}, .port = 999};
}

#endif
