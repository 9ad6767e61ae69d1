#define _GNU_SOURCE
#include "master/others.h"

#include <errno.h>
#include <sys/epoll.h>

#include "base/platform.h"
#include "net/socket.h"

void others_init(struct others *others, int poller, uint64_t first_token) {
    others->poller = poller;
    others->first_token = first_token;
    others->until_ns = INT64_MAX;
    others->known_until_ns = 0;
    others->open = 0;
    for (uint32_t i = 0; i < WIRE_MAX_MASTERS; i++) others->asks[i] = (struct others_ask){.fd = -1};
}

static void hang_up(struct others *others, struct others_ask *ask) {
    if (ask->fd < 0) return;
    epoll_ctl(others->poller, EPOLL_CTL_DEL, ask->fd, NULL); // closing does not, while a child has the socket open
    socket_close(ask->fd);
    conn_in_fini(&ask->answer);
    ask->fd = -1;
    others->open--;
}

void others_fini(struct others *others) {
    for (uint32_t i = 0; i < others->count; i++) hang_up(others, &others->asks[i]);
    others->until_ns = INT64_MAX;
}

bool others_known(const struct others *others, int64_t now_ns) { return now_ns < others->known_until_ns; }

void others_ask(struct others *others, int64_t now_ns) {
    if (others->until_ns != INT64_MAX) return;
    others->until_ns = now_ns + OTHERS_ASK_MS * MS_NS;
    others->most = WIRE_IDLE;
    others->known_until_ns = 0;
    for (uint32_t i = 0; i < others->count; i++) {
        struct others_ask *ask = &others->asks[i];
        *ask = (struct others_ask){.fd = socket_dial(&others->masters[i])};
        if (ask->fd < 0) continue;
        others->open++;
        struct epoll_event event = {.events = EPOLLOUT, .data.u64 = others->first_token + i};
        if (epoll_ctl(others->poller, EPOLL_CTL_ADD, ask->fd, &event) != 0) hang_up(others, ask);
    }
    if (others->open == 0) others->until_ns = now_ns;
}

// False: it cannot be asked. A new connection takes the few bytes at once.
static bool send_ask(struct others *others, struct others_ask *ask, uint64_t token) {
    struct wire_buffer bytes = {0};
    wire_encode_empty(&bytes, (struct wire_header){0}, WIRE_STATUS);
    ask->sent = !bytes.failed && socket_send(ask->fd, bytes.bytes, bytes.length) == (ptrdiff_t)bytes.length;
    wire_buffer_fini(&bytes);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = token};
    return ask->sent && epoll_ctl(others->poller, EPOLL_CTL_MOD, ask->fd, &event) == 0;
}

static bool is_answer(const struct wire_header *header) { return header->type == WIRE_STATUS_IS; }

// False: there is nothing more to come.
static bool receive_answer(struct others *others, struct others_ask *ask) {
    for (;;) {
        ptrdiff_t got = conn_in_receive(&ask->answer, ask->fd, 0);
        if (got <= 0) return got == -EAGAIN;
        struct wire_header header;
        struct wire_status_is status;
        const uint8_t *body;
        enum conn_next next = conn_in_next(&ask->answer, is_answer, &header, &body);
        if (next == CONN_MORE) continue;
        bool good = next == CONN_FRAME && wire_decode_status_is(body, header.length, &status);
        if (good && status.activity > others->most) others->most = status.activity;
        return false;
    }
}

void others_event(struct others *others, uint64_t token, int64_t now_ns) {
    struct others_ask *ask = &others->asks[token - others->first_token];
    if (ask->fd < 0) return; // closed by an event before this one
    int error = ask->sent ? 0 : socket_connect_result(ask->fd);
    if (error == -EINPROGRESS) return;
    if (error != 0 || !(ask->sent ? receive_answer(others, ask) : send_ask(others, ask, token))) hang_up(others, ask);
    if (others->open == 0) others->until_ns = now_ns;
}

bool others_tick(struct others *others, int64_t now_ns) {
    if (now_ns < others->until_ns) return false;
    others_fini(others);
    others->known_until_ns = now_ns + (others->most == WIRE_IDLE ? OTHERS_IDLE_MS : OTHERS_BUSY_MS) * MS_NS;
    return true;
}

int64_t others_deadline(const struct others *others) { return others->until_ns; }
