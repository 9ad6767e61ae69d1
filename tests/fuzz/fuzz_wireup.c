// Connections that are not links yet (peer/wireup): whatever strangers send to the listener, whatever those that were
// dialled answer, in any pieces, while time passes and peers come and go. A link comes up only after a hello that was
// judged good, or after the ACK of a peer that was dialled, and every connection is closed or handed over in the end.
#include "peer/wireup.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"
#include "events.h"
#include "fuzz.h"
#include "net/socket.h"

enum { ENDS = 24, PORT = 9, FIRST_DATA = 5, EVENTS = 16 };

static struct fuzz in;
static struct wireup *wireup;
static int epoll, listener;
static int ends[ENDS];                                  // of strangers and of those dialled; 0: none
static int waiting[ENDS], waiting_count, waiting_first; // to be accepted
static uint32_t end_count;
static int64_t now;
static uint32_t judgement; // of the next hello
static uint64_t accepted, dialled, ups;
static int opened; // descriptors that `links` has got and not given back
static int refusal;

// ---- what stands in for the system ----
int64_t __wrap_platform_now_ns(void);
int __wrap_socket_listen_from(const struct wire_address *address, uint16_t first, uint16_t *port);
int __wrap_socket_accept(int from, struct wire_address *address);
int __wrap_socket_dial_from(const struct card *card, const struct wire_address *address);
int __wrap_socket_connect_result(int fd);
void __wrap_descriptor_close(int fd);
struct gauge __wrap_socket_gauge(int fd);

int64_t __wrap_platform_now_ns(void) { return now; }
struct gauge __wrap_socket_gauge(int fd) {
    (void)fd;
    return (struct gauge){.round_trip_us = 100};
}

int __wrap_socket_listen_from(const struct wire_address *address, uint16_t first, uint16_t *port) {
    (void)address;
    *port = first;
    opened++;
    return listener;
}

void __wrap_descriptor_close(int fd) {
    if (fd < 0) return;
    opened--;
    close(fd);
}

// The new end, and ours at `ends`.
static int pair_up(void) {
    int pair[2];
    if (end_count == ENDS) return -EMFILE;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    ends[end_count++] = pair[1];
    return pair[0];
}

int __wrap_socket_accept(int from, struct wire_address *address) {
    MUST(from == listener);
    *address = (struct wire_address){.family = 4};
    if (refusal != 0) {
        int error = refusal;
        refusal = 0;
        return error;
    }
    if (waiting_first == waiting_count) return -EAGAIN;
    opened++;
    return waiting[waiting_first++];
}

int __wrap_socket_dial_from(const struct card *card, const struct wire_address *address) {
    (void)card;
    int fd = address->port == PORT ? -ECONNREFUSED : pair_up();
    opened += fd >= 0;
    return fd;
}

int __wrap_socket_connect_result(int fd) {
    (void)fd;
    int error = refusal;
    refusal = 0;
    return error;
}

// ---- what they say ----
static enum member_judgement judge(void *context, const struct wire_link_hello *hello) {
    (void)context;
    static const uint8_t secret[16] = {9};
    if (memcmp(hello->secret, secret, sizeof secret) != 0 || hello->version != WIRE_VERSION) return MEMBER_REJECT;
    accepted += judgement == MEMBER_ACCEPT && hello->kind == WIRE_LINK_DATA;
    return (enum member_judgement)judgement;
}

static struct wire_id id_of(uint32_t peer) { return (struct wire_id){{(uint8_t)(peer + 1)}}; }

static void say(uint32_t end, const void *bytes, size_t length) {
    if (end < end_count && ends[end] != 0 && length > 0)
        (void)!send(ends[end], bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void say_frame(uint32_t end, bool ack) {
    uint32_t how = fuzz_u8(&in);
    struct wire_buffer frame = {0};
    struct wire_header header = {.run = 7, .generation = 1};
    struct wire_link_hello hello = {.version = WIRE_VERSION,
                                    .kind = how & 1 ? WIRE_LINK_PROBE : WIRE_LINK_DATA,
                                    .secret = {9},
                                    .from = id_of(1 + (how >> 1 & 3)),
                                    .to = id_of(0),
                                    .index = how >> 3 & 3};
    if (ack) wire_encode_empty(&frame, header, WIRE_LINK_HEARD);
    if (!ack) wire_encode_link_hello(&frame, header, &hello);
    if ((how & 0x80) == 0) wire_encode_link_padding(&frame, header);
    if (ack) wire_encode_empty(&frame, header, WIRE_LINK_ACK);
    if (!frame.failed) {
        if (how & 0x20) frame.bytes[fuzz_u8(&in) % frame.length] ^= (uint8_t)(1 + fuzz_u8(&in) % 255);
        say(end, frame.bytes, how & 0x40 ? fuzz_u8(&in) % (frame.length + 1) : frame.length);
    }
    wire_buffer_fini(&frame);
}

static void say_raw(uint32_t end) {
    uint8_t bytes[256];
    size_t length = fuzz_u8(&in);
    fuzz_bytes(&in, bytes, length);
    say(end, bytes, length);
}

static void hang_up(uint32_t end) {
    if (end >= end_count || ends[end] == 0) return;
    close(ends[end]);
    ends[end] = 0;
}

// ---- the control thread ----
static void turn(void) {
    struct epoll_event events[EVENTS];
    static uint8_t junk[1 << 16];
    for (uint32_t i = 0; i < end_count; i++)
        while (ends[i] != 0 && recv(ends[i], junk, sizeof junk, MSG_DONTWAIT) > 0) continue;
    if (waiting_first < waiting_count || refusal != 0) wireup_handle(wireup, FIRST_DATA, now);
    int count = epoll_wait(epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 != FIRST_DATA) wireup_handle(wireup, events[i].data.u64, now);
}

static void take(void) {
    struct wireup_event event;
    while (wireup_next(wireup, &event)) {
        if (event.kind == WIREUP_UP) MUST(++ups <= accepted + dialled && event.stream != NULL);
        if (event.kind == WIREUP_UP || event.kind == WIREUP_PRECOPY) transport_free(event.stream);
    }
}

static void dial(bool probe) {
    uint32_t how = fuzz_u8(&in);
    struct wire_id id = id_of(1 + (how & 3));
    struct wire_reach reach = {.count = 1, .addresses = {{.family = 4, .port = how & 8 ? PORT : 1}}};
    if (probe) {
        wireup_probe(wireup, &id, &reach, fuzz_u8(&in) * 10u, now + SECOND_NS);
    } else {
        dialled++;
        wireup_dial(wireup, WIRE_LINK_DATA, &id, how >> 4, &reach, now + SECOND_NS);
    }
}

static void act(uint32_t event) {
    static const int refusals[] = {-EMFILE, -ECONNABORTED, -ENOMEM, -EINPROGRESS, -ECONNREFUSED};
    struct wireup_identity identity = {.self = id_of(0), .run = 7, .generation = 1, .secret = {9}};
    struct wire_id id;
    uint32_t end;
    int fd;
    switch (event) {
    case L_COME:
        fd = pair_up();
        if (fd >= 0) waiting[waiting_count++] = fd;
        break;
    case L_HELLO:
        end = fuzz_u8(&in);
        say_frame(end, false);
        break;
    case L_ACK:
        end = fuzz_u8(&in);
        say_frame(end, true);
        break;
    case L_RAW:
        end = fuzz_u8(&in);
        say_raw(end);
        break;
    case L_HANG_UP: hang_up(fuzz_u8(&in)); break;
    case L_JUDGE: judgement = fuzz_below(&in, MEMBER_REJECT + 1); break;
    case L_RECHECK: wireup_recheck(wireup); break;
    case L_DIAL: dial(false); break;
    case L_PROBE: dial(true); break;
    case L_CANCEL:
        id = id_of(1 + fuzz_below(&in, 4));
        wireup_cancel(wireup, &id);
        break;
    case L_WAIT:
        now += (int64_t)fuzz_u8(&in) * 100 * MS_NS;
        wireup_tick(wireup, now);
        break;
    case L_DUE:
        if (wireup_deadline(wireup) == INT64_MAX) break;
        if (wireup_deadline(wireup) > now) now = wireup_deadline(wireup);
        wireup_tick(wireup, now);
        MUST(wireup_deadline(wireup) > now);
        break;
    case L_TAKE: take(); break;
    case L_SYSTEM: refusal = refusals[fuzz_below(&in, sizeof refusals / sizeof refusals[0])]; break;
    case L_REFUSE: fuzz_refuse(1 + fuzz_u8(&in)); break;
    case L_IDENTIFY: wireup_identify(wireup, &identity, WIREUP_UNKNOWN_MS * MS_NS); break;
    default: break;
    }
    turn();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wire_id self = id_of(0);
    uint16_t port;
    in = (struct fuzz){data, data + size};
    memset(ends, 0, sizeof ends);
    end_count = 0;
    waiting_count = waiting_first = refusal = opened = 0;
    accepted = dialled = ups = 0;
    judgement = MEMBER_ACCEPT;
    now = SECOND_NS;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); // stands for one: it is never ready
    MUST(epoll >= 0 && listener >= 0);
    struct transport_context *context = transport_context_new(NULL);
    MUST(context != NULL);
    wireup = wireup_new(context, epoll, FIRST_DATA, &self, judge, NULL);
    MUST(wireup != NULL && wireup_listen(wireup, &(struct wire_address){.family = 4}, &(struct cards){0}, &port) == 0);
    while (fuzz_more(&in)) act(fuzz_u8(&in) % L_EVENTS);
    fuzz_refuse(0);
    wireup_free(wireup);
    transport_context_release(context);
    MUST(opened == 0);
    while (waiting_first < waiting_count) close(waiting[waiting_first++]);
    for (uint32_t i = 0; i < end_count; i++) hang_up(i);
    close(epoll);
    return 0;
}
