// With keys: what a master, the links of a peer, and a peer that looks for its master do when the other side has keys of
// the run, and acts as somebody that it is not.
#define _GNU_SOURCE
#include "check.h"

#ifndef PCCL_HAVE_TLS

int main(void) {
    CHECK(true);
    return check_status();
}

#else

#include <sys/epoll.h>

#include "asking.h"
#include "base/platform.h"
#include "master/master.h"
#include "net/tls.h"
#include "peer/wireup.h"
#include "peer/master_link.h"
#include "tls_ends.h"

enum { PATIENCE_MS = 20000, DATA = 7 };

static const struct wire_id another = {"another's id"};
static const struct cards no_cards;
static const struct wire_run no_run;

// ---- the far end ----

static int open_stream(struct transport *stream) {
    int error;
    while ((error = transport_step(stream)) == -EAGAIN)
        if (!far_end_await(stream, (short)stream->awaits)) break;
    return error;
}

static struct transport *dial_as(struct transport_context *context, const struct wire_address *address) {
    struct transport *stream;
    REQUIRE(transport_dial(context, address, &stream) == 0);
    REQUIRE(CHECK_EQ(open_stream(stream), 0));
    return stream;
}

static struct wire_hello hello_of(const struct wire_id *id) {
    return (struct wire_hello){
        .version = WIRE_VERSION, .id = *id, .lanes = 1, .port = 40000, .masters = 1, .name = {"a name"}};
}

static bool is_answered(struct transport *stream, const struct wire_buffer *frame) {
    uint8_t first;
    return far_end_write(stream, frame->bytes, frame->length) && far_end_read(stream, &first, 1);
}

// ---- a master ----

static bool master_answers(struct transport_context *context, const struct wire_address *address, enum wire_type type,
                           const struct wire_id *id) {
    struct transport *stream = dial_as(context, address);
    struct wire_buffer frame = {0};
    struct wire_header header = {.run = 5, .generation = 1};
    struct wire_hello hello = hello_of(id);
    if (type == WIRE_HELLO) wire_encode_hello(&frame, (struct wire_header){0}, &hello);
    if (type == WIRE_RESUME) wire_encode_resume(&frame, header, &(struct wire_resume){.hello = hello, .generation = 1});
    if (type == WIRE_DIAGNOSE) wire_encode_empty(&frame, (struct wire_header){0}, type);
    REQUIRE(frame.length > 0 && !frame.failed);
    bool answered = is_answered(stream, &frame);
    wire_buffer_fini(&frame);
    transport_free(stream);
    return answered;
}

static struct master *start_master(struct wire_address *address) {
    struct keys *keys = key_files_load(true, 1, 1, 0);
    struct transport_options options = {.keys = keys, .party = TRANSPORT_MASTER};
    struct master_options master_options = {
        .listens = &any_port, .listen_count = 1, .heartbeat_limit_ms = PATIENCE_MS, .transport = &options};
    struct master *master;
    REQUIRE(master_start(&master_options, &master) == 0);
    keys_release(keys);
    *address = any_port;
    address->port = master_port(master);
    return master;
}

static void test_master(void) {
    struct wire_address address;
    struct master *master = start_master(&address);
    struct transport_context *peer = peer_context(), *other_master = master_context();
    struct transport_context *observer = context_of(key_files_load(false, 1, 1, 0), TRANSPORT_OBSERVER);
    static const struct {
        const char *name;
        enum wire_type type;
        int party; // 0 peer, 1 observer, 2 master
        bool own;  // the id is the one that was proved
        bool answered;
    } rows[] = {
        {"HELLO of a peer", WIRE_HELLO, 0, true, true},
        {"HELLO with another's id", WIRE_HELLO, 0, false, false},
        {"HELLO of an observer", WIRE_HELLO, 1, true, false},
        {"HELLO of a master", WIRE_HELLO, 2, true, false},
        {"RESUME of a peer", WIRE_RESUME, 0, true, true}, // it is refused, in words
        {"RESUME with another's id", WIRE_RESUME, 0, false, false},
        {"RESUME of an observer", WIRE_RESUME, 1, true, false},
        {"RESUME of a master", WIRE_RESUME, 2, true, false},
        {"DIAGNOSE of a peer", WIRE_DIAGNOSE, 0, true, true},
        {"DIAGNOSE of an observer", WIRE_DIAGNOSE, 1, true, true},
        {"DIAGNOSE of a master", WIRE_DIAGNOSE, 2, true, true},
    };
    struct transport_context *contexts[] = {peer, observer, other_master};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        struct transport_context *context = contexts[rows[i].party];
        const struct wire_id *id = rows[i].own ? tls_context_id(context) : &another;
        CHECK_EQ(master_answers(context, &address, rows[i].type, id), rows[i].answered);
    }
    struct wire_status_is status;
    for (int i = 0; i < 3; i++) {
        check_case("STATUS of party %d", i);
        CHECK_EQ(asking_status(contexts[i], &address, NULL, PATIENCE_MS, &status), 0);
    }
    check_case("a question without keys");
    CHECK_EQ(asking_status(far_end_context(), &address, NULL, PATIENCE_MS, &status), -ENOKEY);
    check_case("a question with other keys");
    struct transport_context *stranger = context_of(key_files_load(false, 1, 2, 0), TRANSPORT_OBSERVER);
    CHECK_EQ(asking_status(stranger, &address, NULL, PATIENCE_MS, &status), -EKEYREJECTED);
    transport_context_release(stranger);
    for (int i = 0; i < 3; i++) transport_context_release(contexts[i]);
    master_free(master);
}

// The holder of the keys of one run asks for another.
static bool hears(struct transport *stream, enum wire_type type, const char *part) {
    uint8_t head[WIRE_HEADER_BYTES], body[WIRE_MAX_TEXT + 2];
    struct wire_header header;
    struct wire_text text;
    if (!far_end_read(stream, head, sizeof head) || !wire_header_decode(head, &header)) return false;
    if (header.type != type || header.length > sizeof body || !far_end_read(stream, body, header.length)) return false;
    if (!wire_decode_text(body, header.length, &text)) return false;
    bool found = memmem(text.chars, text.length, part, strlen(part)) != NULL;
    if (!found) fprintf(stderr, "%.*s\n", (int)text.length, text.chars);
    return found;
}

// Asks for the runs as a process of another user does. Returns how many it is told, of which this is the first.
static uint32_t runs_told(struct transport_context *context, const struct wire_address *address,
                          const struct wire_run *first) {
    uint8_t head[WIRE_HEADER_BYTES], body[WIRE_MAX_RUNS * (WIRE_MAX_RUN + 8) + 8];
    struct wire_header header;
    struct wire_runs_are told = {0};
    struct wire_buffer frame = {0};
    struct transport *stream = dial_as(context, address);
    wire_encode_empty(&frame, (struct wire_header){0}, WIRE_RUNS);
    CHECK(far_end_write(stream, frame.bytes, frame.length));
    REQUIRE(far_end_read(stream, head, sizeof head) && wire_header_decode(head, &header));
    REQUIRE(header.length <= sizeof body && far_end_read(stream, body, header.length));
    CHECK(wire_decode_runs_are(body, header.length, &told));
    CHECK_STR(told.runs[0].run.chars, first->chars);
    wire_buffer_fini(&frame);
    transport_free(stream);
    return told.count;
}

static void test_runs(void) {
    struct wire_address address;
    struct master *master = start_master(&address);
    struct transport_context *peer = context_of(key_files_of_run("alpha", 1, 0), TRANSPORT_PEER);
    struct transport_context *observer = context_of(key_files_of_run("alpha", 1, 0), TRANSPORT_OBSERVER);
    struct transport_context *member = context_of(key_files_of_run("beta", 1, 0), TRANSPORT_PEER),
                             *all = peer_context();
    const struct wire_run alpha = {"alpha"}, beta = {"beta"}, every = {WIRE_EVERY_RUN}, unnamed = {{0}};
    const struct wire_run *names[] = {&alpha, &beta, &every, &unnamed};

    // Beta and the run without a name have a member each, and alpha gets one.
    struct transport *members[3];
    struct transport_context *contexts[] = {member, all, peer};
    const struct wire_run *theirs[] = {&beta, &unnamed, &alpha};
    for (int i = 0; i < 3; i++) {
        check_case("a member of run %s", theirs[i]->chars);
        struct wire_hello hello = hello_of(tls_context_id(contexts[i]));
        struct wire_buffer frame = {0};
        if (theirs[i] != &unnamed) wire_encode_run(&frame, (struct wire_header){0}, theirs[i]);
        wire_encode_hello(&frame, (struct wire_header){0}, &hello);
        members[i] = dial_as(contexts[i], &address);
        CHECK(is_answered(members[i], &frame));
        wire_buffer_fini(&frame);
    }
    for (int i = 0; i < 4; i++) {
        static const enum wire_type types[] = {WIRE_HELLO,    WIRE_RESUME, WIRE_STATUS,
                                               WIRE_DIAGNOSE, WIRE_REMOVE, WIRE_STACKS};
        if (names[i] == &alpha) continue;
        for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
            check_case("message %d for run \"%s\"", (int)types[k], names[i]->chars);
            struct wire_hello hello = hello_of(tls_context_id(peer));
            struct wire_header header = {.run = 5, .generation = 1};
            struct wire_remove remove = {.id = *tls_context_id(member)};
            struct wire_buffer frame = {0};
            if (names[i] != &unnamed) wire_encode_run(&frame, (struct wire_header){0}, names[i]);
            switch (types[k]) {
            case WIRE_HELLO: wire_encode_hello(&frame, (struct wire_header){0}, &hello); break;
            case WIRE_RESUME:
                wire_encode_resume(&frame, header, &(struct wire_resume){.hello = hello, .generation = 1});
                break;
            case WIRE_REMOVE: wire_encode_remove(&frame, (struct wire_header){0}, &remove); break;
            case WIRE_STACKS:
                wire_encode_bytes(&frame, (struct wire_header){0}, WIRE_STACKS, remove.id.bytes, WIRE_ID_BYTES);
                break;
            default: wire_encode_empty(&frame, (struct wire_header){0}, types[k]);
            }
            struct transport *stream = dial_as(peer, &address);
            CHECK(far_end_write(stream, frame.bytes, frame.length));
            if (types[k] == WIRE_HELLO)
                CHECK(hears(stream, WIRE_REFUSED, "its keys are those of run alpha, and it asks for "));
            else if (types[k] != WIRE_RESUME)
                CHECK(hears(stream, WIRE_REMOVED, "its keys are those of run alpha, and it asks for "));
            uint8_t more;
            CHECK(!far_end_read(stream, &more, 1)); // nothing else is said
            wire_buffer_fini(&frame);
            transport_free(stream);
        }
        check_case("a question about run \"%s\"", names[i]->chars);
        struct wire_status_is status;
        CHECK_EQ(asking_status(observer, &address, names[i], PATIENCE_MS, &status), -EKEYREJECTED);
    }
    check_case("questions about its own run");
    struct wire_status_is status;
    CHECK_EQ(asking_status(observer, &address, &alpha, PATIENCE_MS, &status), 0);
    CHECK_EQ(status.activity, WIRE_SERVES);
    CHECK_EQ(runs_told(observer, &address, &alpha), 1);
    CHECK_EQ(runs_told(all, &address, &unnamed), 3);
    CHECK_EQ(asking_status(all, &address, &alpha, PATIENCE_MS, &status), 0);
    CHECK_EQ(status.activity, WIRE_SERVES);
    struct wire_text why;
    uint8_t remove[WIRE_ID_BYTES + 2] = {0};
    memcpy(remove, tls_context_id(peer)->bytes, WIRE_ID_BYTES);
    CHECK_EQ(asking(observer, &address, &alpha, PATIENCE_MS, WIRE_REMOVE, remove, sizeof remove, WIRE_REMOVED, &why),
             0);
    CHECK(memmem(why.chars, why.length, "the keys of the masters", 23) != NULL);

    for (int i = 0; i < 3; i++) transport_free(members[i]);
    transport_context_release(observer);
    for (int i = 0; i < 3; i++) transport_context_release(contexts[i]);
    master_free(master);
}

// ---- links ----

static enum member_judgement accept_all(void *context, const struct wire_link_hello *hello) {
    (void)context, (void)hello;
    return MEMBER_ACCEPT;
}

static void turn(struct wireup *wireup, int epoll, int wait_ms) {
    struct epoll_event events[16];
    int count = epoll_wait(epoll, events, 16, wait_ms);
    for (int i = 0; i < count; i++) wireup_handle(wireup, events[i].data.u64, platform_now_ns());
}

static void test_accepted_links(void) {
    struct transport_context *own = peer_context(), *peer = peer_context();
    struct transport_context *observer = context_of(key_files_load(false, 1, 1, 0), TRANSPORT_OBSERVER);
    const struct wire_id *self = tls_context_id(own);
    int epoll = descriptor_epoll();
    struct wire_address address = any_port;
    struct wireup *wireup = wireup_new(own, epoll, 100, self, accept_all, NULL);
    REQUIRE(wireup != NULL && wireup_listen(wireup, &any_port, &no_cards, &address.port) == 0);
    wireup_identify(wireup, &(struct wireup_identity){.self = *self, .run = 7}, WIREUP_UNKNOWN_MS * MS_NS);
    struct transport_context *other_run = context_of(key_files_of_run("alpha", 1, 0), TRANSPORT_PEER);
    for (int i = 0; i < 4; i++) {
        check_case(i == 0 ? "its own id" : i == 1 ? "another's id" : i == 2 ? "an observer" : "keys of another run");
        struct transport_context *context = i == 3 ? other_run : i == 2 ? observer : peer;
        struct transport *stream;
        int error = -EAGAIN;
        REQUIRE(transport_dial(context, &address, &stream) == 0);
        while (error == -EAGAIN && far_end_await(stream, (short)(stream->awaits | POLLOUT))) {
            turn(wireup, epoll, 1);
            error = transport_step(stream);
        }
        REQUIRE(CHECK_EQ(error, i == 3 ? -EKEYREJECTED : 0));
        if (i == 3) { // no frame of it is read
            transport_free(stream);
            continue;
        }
        struct wire_link_hello hello = {.version = WIRE_VERSION,
                                        .kind = WIRE_LINK_DATA,
                                        .from = i == 1 ? another : *tls_context_id(context),
                                        .to = *self};
        struct wire_buffer frame = {0};
        wire_encode_link_hello(&frame, (struct wire_header){.run = 7}, &hello);
        CHECK(far_end_write(stream, frame.bytes, frame.length));
        wire_buffer_fini(&frame);
        uint8_t answer;
        ptrdiff_t got;
        AWAIT((got = transport_receive(stream, &answer, 1)) != -EAGAIN, turn(wireup, epoll, 1));
        if (i == 0)
            CHECK_EQ(got, 1); // LINK_HEARD
        else
            CHECK(got <= 0);
        transport_free(stream);
    }
    wireup_free(wireup);
    descriptor_close(epoll);
    transport_context_release(own);
    transport_context_release(peer);
    transport_context_release(observer);
    transport_context_release(other_run);
}

// Somebody who has keys of the run listens at the address of a member, or as a master.
struct impostor {
    struct transport_context *context;
    int listener;
    struct wire_address address;
    struct transport *stream;
};

static void impostor_open(struct impostor *impostor, struct transport_context *context) {
    *impostor = (struct impostor){.context = context};
    impostor->listener = socket_listen(&any_port);
    REQUIRE(impostor->listener >= 0 && socket_local_address(impostor->listener, &impostor->address));
}

static void impostor_turn(struct impostor *impostor) {
    struct wire_address from;
    if (impostor->stream == NULL) transport_accept(impostor->context, impostor->listener, &impostor->stream, &from);
    if (impostor->stream != NULL) transport_step(impostor->stream);
}

static void impostor_close(struct impostor *impostor) {
    transport_free(impostor->stream);
    descriptor_close(impostor->listener);
}

static void test_dialled_links(void) {
    struct transport_context *own = peer_context(), *other = peer_context(), *master = master_context();
    for (int i = 0; i < 2; i++) {
        check_case(i == 0 ? "another member answers" : "a master answers");
        struct impostor impostor;
        struct wireup_event event;
        const struct wire_id *wanted = i == 0 ? &another : tls_context_id(master);
        impostor_open(&impostor, i == 0 ? other : master);
        int epoll = descriptor_epoll();
        struct wireup *wireup = wireup_new(own, epoll, 100, tls_context_id(own), accept_all, NULL);
        REQUIRE(wireup != NULL);
        wireup_dial(wireup, WIRE_LINK_DATA, wanted, 0,
                    &(struct wire_reach){.count = 1, .addresses = {impostor.address}}, INT64_MAX);
        while (!wireup_next(wireup, &event)) {
            impostor_turn(&impostor);
            turn(wireup, epoll, 1);
        }
        CHECK_EQ(event.kind, WIREUP_FAILED);
        wireup_free(wireup);
        descriptor_close(epoll);
        impostor_close(&impostor);
    }
    transport_context_release(own);
    transport_context_release(other);
    transport_context_release(master);
}

// ---- a peer that looks for its master ----

static void test_masters(void) {
    struct transport_context *own = peer_context(), *member = peer_context(), *master = master_context();
    struct transport_context *other_run = context_of(key_files_load(true, 2, 2, 0), TRANSPORT_MASTER);
    struct transport_context *contexts[] = {master, member, other_run, far_end_context()};
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"the master", NULL},
        {"a member as the master", "not of a peer"},
        {"a master of another run", "not of one run"},
        {"a master without keys", "does not encrypt"},
    };
    for (int i = 0; i < 4; i++) {
        check_case("%s", rows[i].name);
        struct impostor impostor;
        struct master_event event;
        impostor_open(&impostor, contexts[i]);
        int epoll = descriptor_epoll();
        struct master_link *link = master_link_new(epoll, DATA, &no_cards);
        REQUIRE(link != NULL);
        int64_t now_ns = platform_now_ns();
        master_link_join(link, own, &no_run, &impostor.address, 1, now_ns);
        while (!master_link_next(link, &event, &now_ns)) {
            impostor_turn(&impostor);
            if (i == 3 && impostor.stream != NULL) transport_hang_up(impostor.stream); // it makes no sense of it
            struct epoll_event told;
            if (epoll_wait(epoll, &told, 1, 1) == 1) master_link_event(link, told.events, platform_now_ns());
        }
        CHECK_EQ(event.kind, rows[i].text == NULL ? MASTER_ANSWERS : MASTER_UNREACHABLE);
        if (rows[i].text != NULL) {
            CHECK(strstr(event.text, "cannot trust the master") != NULL);
            if (!CHECK(strstr(event.text, rows[i].text) != NULL)) fprintf(stderr, "%s\n", event.text);
        }
        master_link_free(link);
        descriptor_close(epoll);
        impostor_close(&impostor);
    }
    transport_context_release(own);
    transport_context_release(member);
    transport_context_release(master);
    transport_context_release(other_run);
}

int main(void) {
    test_master();
    test_runs();
    test_accepted_links();
    test_dialled_links();
    test_masters();
    return check_status();
}

#endif
