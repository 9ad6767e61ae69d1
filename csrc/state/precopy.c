#define _GNU_SOURCE
#include "state/precopy.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/platform.h"
#include "device/device.h"
#include "net/wire_data.h"

enum {
    LOOK_MS = 100,           // between two looks at whether the stream is to end
    IDLE_MS = 60000,         // until a newcomer asks again, at most
    UNSENT_BYTES = 1 << 19,  // that a donor hands the kernel early: operations share the line with what is queued
    RANGE_LEAVES = 128,      // 32 MiB; asks for all of them fit any socket's buffer, so both sides never send at once
    REFRESH_MOST_MS = 30000, // between two passes of a newcomer that is up to date, at most
    REFRESH_PART = 10,       // of the time that the last pass took: how long it rests at least
    PROBE_MS = 10,           // between two looks at whether the donor's state has changed, at least
    PROBE_MOST_MS = 1000,    // at most
    PROBE_PART = 100,        // of the time without a change: how long it waits until the next look
    FOLLOWS_MOST = 10,       // passes right after a change, of a newcomer that is up to date
    FRAME_BYTES = WIRE_HEADER_BYTES + WIRE_HEAD_BYTES,
};

_Static_assert(IDLE_MS > REFRESH_MOST_MS, "a newcomer that rests is not given up");

struct donation {
    struct precopy *precopy;
    pthread_t thread;
    struct transport *stream; // NULL: it has ended; guarded by `lock`
    bool used;                // the thread is to be joined
};

struct precopy {
    pthread_mutex_t lock; // of what follows, but not of what the content holds
    atomic_bool stopping;
    struct donation donations[PRECOPY_DONATIONS_MOST];
    bool gives, never_gives;
    bool receives; // the thread is to be joined
    atomic_bool ends;
    pthread_t receiver;
    struct transport *from; // NULL: it has ended
    pthread_cond_t resting;
    int wake;
    enum precopy_news news;
    struct wire_progress progress; // what the newcomer holds of the state

    // Held while a donor's thread reads a leaf, and to replace the content. A receiver reads and writes it alone.
    pthread_mutex_t reading;
    struct content *content;
};

// ---- bytes ----

// Whether the thread of this stream is to end.
static bool is_over(struct precopy *p, bool receives) {
    return atomic_load(&p->stopping) || (receives && atomic_load(&p->ends));
}

struct line {
    struct precopy *precopy;
    struct transport *stream;
    bool receives; // it is the newcomer's
};

// Waits until the stream is ready. False: it is to end, or `deadline` has passed.
static bool await(const struct line *line, uint32_t events, int64_t deadline) {
    if (is_over(line->precopy, line->receives) || platform_now_ns() > deadline) return false;
    transport_wait(line->stream, events, LOOK_MS);
    return true;
}

static int64_t stall_from_now(void) { return platform_now_ns() + PRECOPY_STALL_MS * MS_NS; }

static bool send_all(const struct line *line, struct iovec *parts, int count) {
    int64_t deadline = stall_from_now();
    while (count > 0) {
        ptrdiff_t sent = transport_sendv(line->stream, parts, count);
        if (sent == -EAGAIN && await(line, EPOLLOUT, deadline)) continue;
        if (sent <= 0 || is_over(line->precopy, line->receives)) return false;
        deadline = stall_from_now();
        while (count > 0 && (size_t)sent >= parts->iov_len) {
            sent -= (ptrdiff_t)parts->iov_len;
            parts++, count--;
        }
        if (count == 0) break;
        parts->iov_base = (uint8_t *)parts->iov_base + sent;
        parts->iov_len -= (size_t)sent;
    }
    return true;
}

static bool receive_all(const struct line *line, void *bytes, size_t length, int64_t limit_ms) {
    int64_t deadline = platform_now_ns() + limit_ms * MS_NS;
    for (size_t at = 0; at < length;) {
        ptrdiff_t got = transport_receive(line->stream, (uint8_t *)bytes + at, length - at);
        if (got == -EAGAIN && await(line, EPOLLIN, deadline)) continue;
        if (got <= 0 || is_over(line->precopy, line->receives)) return false;
        deadline = stall_from_now();
        at += (size_t)got;
    }
    return true;
}

// ---- frames ----

struct frame_start {
    struct wire_header header;
    struct wire_head head;
};

static bool send_frame(const struct line *line, enum wire_type type, const struct wire_head *head, const void *payload,
                       size_t length) {
    uint8_t start[FRAME_BYTES];
    struct wire_header header = {.length = (uint32_t)(WIRE_HEAD_BYTES + length), .type = (uint16_t)type};
    wire_header_encode(start, &header);
    wire_head_encode(start + WIRE_HEADER_BYTES, (uint16_t)type, head);
    struct iovec parts[2] = {{start, sizeof start}, {(void *)payload, length}};
    return send_all(line, parts, length > 0 ? 2 : 1);
}

// False: the stream has ended, or carries something else than frames with heads and no padding.
static bool receive_start(const struct line *line, struct frame_start *out, int64_t limit_ms) {
    uint8_t start[FRAME_BYTES];
    return receive_all(line, start, sizeof start, limit_ms) && wire_header_decode(start, &out->header) &&
           out->header.length >= WIRE_HEAD_BYTES &&
           wire_head_decode(start + WIRE_HEADER_BYTES, out->header.type, &out->head) && out->head.lead == 0 &&
           out->head.padding == 0;
}

// ---- the donor ----

// Copies a leaf of the state. 0: there is no such leaf, or its memory cannot be read; else its length.
static uint32_t read_leaf(struct precopy *p, uint64_t round, uint64_t leaf, uint8_t room[HASH_LEAF_BYTES]) {
    uint32_t length = 0;
    pthread_mutex_lock(&p->reading);
    struct content *content = p->content;
    if (content != NULL && content->mask.low == round && leaf < content->layout.leaf_count) {
        struct delta_piece piece = delta_layout_find(&content->layout, leaf);
        const struct delta_entry *entry = &content->layout.entries[piece.entry];
        const uint8_t *at = (const uint8_t *)entry->data + piece.offset;
        uint64_t fence = 0;
        // A program may free a tensor that it has replaced: that is an error of the kernel's, not a crash.
        const void *view = entry->queue == NULL ? NULL : device_map(entry->queue, at, piece.length, &fence);
        bool good = entry->queue == NULL ? memory_copy_checked(room, at, piece.length)
                                         : view != NULL && device_await_fence(entry->queue, fence);
        if (good && view != NULL) memcpy(room, view, piece.length);
        device_unmap(entry->queue, view);
        length = good ? piece.length : 0;
    }
    pthread_mutex_unlock(&p->reading);
    return length;
}

static bool give_hashes(const struct line *line, const struct wire_sync_ask *ask, uint8_t *room) {
    uint64_t hashes[RANGE_LEAVES];
    if (ask->count > RANGE_LEAVES) return false;
    for (uint32_t i = 0; i < ask->count; i++) {
        uint32_t length = read_leaf(line->precopy, ask->round, ask->first + i, room);
        if (length == 0) return false;
        hashes[i] = hash_xxh3_64(room, length);
    }
    struct wire_head head = {.sync_hashes = {ask->round, ask->first, ask->sequence, ask->count}};
    return send_frame(line, WIRE_SYNC_HASHES, &head, hashes, ask->count * sizeof *hashes);
}

static bool give_leaves(const struct line *line, const struct wire_sync_ask *ask, uint8_t *room) {
    for (uint32_t i = 0; i < ask->count; i++) {
        uint32_t length = read_leaf(line->precopy, ask->round, ask->first + i, room);
        struct wire_head head = {.sync_leaf = {ask->round, ask->first + i, ask->sequence, WIRE_SYNC_PLAIN}};
        if (length == 0 || !send_frame(line, WIRE_SYNC_LEAF, &head, room, length)) return false;
    }
    return true;
}

static void serve(const struct line *line) {
    struct frame_start start;
    uint8_t *room = malloc(HASH_LEAF_BYTES);
    bool good = room != NULL;
    while (good && receive_start(line, &start, IDLE_MS)) {
        const struct wire_sync_ask *ask = &start.head.sync_ask;
        good = start.header.length == WIRE_HEAD_BYTES;
        if (start.header.type == WIRE_SYNC_ASK_HASHES)
            good = good && give_hashes(line, ask, room);
        else
            good = good && start.header.type == WIRE_SYNC_ASK && give_leaves(line, ask, room);
    }
    free(room);
}

static void *donate(void *context) {
    struct donation *donation = context;
    struct precopy *p = donation->precopy;
    struct line line = {.precopy = p, .stream = donation->stream};
    platform_thread_lower_priority();
    transport_limit_unsent(line.stream, UNSENT_BYTES);
    serve(&line);
    pthread_mutex_lock(&p->lock);
    donation->stream = NULL; // from here on nobody hangs it up
    pthread_mutex_unlock(&p->lock);
    transport_free(line.stream);
    return NULL;
}

static void join_donation(struct donation *donation) {
    if (donation->used) pthread_join(donation->thread, NULL);
    donation->used = false;
}

void precopy_give(struct precopy *p, struct transport *stream) {
    struct donation *free_one = NULL;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < PRECOPY_DONATIONS_MOST && p->gives && free_one == NULL; i++)
        if (p->donations[i].stream == NULL) free_one = &p->donations[i];
    if (free_one != NULL) free_one->stream = stream; // only this thread begins donations, so it stays ours
    pthread_mutex_unlock(&p->lock);
    if (free_one != NULL) {
        join_donation(free_one); // the one before, which has ended
        free_one->precopy = p;
        free_one->used = platform_thread_start(&free_one->thread, "pccl:donor", donate, free_one);
        if (free_one->used) return;
        pthread_mutex_lock(&p->lock);
        free_one->stream = NULL;
        pthread_mutex_unlock(&p->lock);
    }
    transport_free(stream);
}

// ---- the newcomer ----

// The passes over one stream.
struct passes {
    struct line line;
    struct content *content;
    uint64_t theirs[2][RANGE_LEAVES]; // of the range at hand, and of the one after
    uint64_t fetched;                 // bytes, in this pass
    uint64_t last;                    // leaf that was fetched last
    int64_t began_ns, told_ns;        // this pass; when it was last told how far it is
    bool up_to_date;                  // has been so once
    unsigned follows;                 // passes that may still follow a change at once
    int64_t changed_ns;               // when the last change was found
    bool wrote;
};

static uint32_t range_length(const struct passes *s, uint64_t first) {
    uint64_t left = s->content->layout.leaf_count - first;
    return left < RANGE_LEAVES ? (uint32_t)left : RANGE_LEAVES;
}

static bool ask(struct passes *s, enum wire_type type, uint64_t first, uint32_t count) {
    struct wire_head head = {.sync_ask = {.round = s->content->mask.low, .first = first, .count = count}};
    return send_frame(&s->line, type, &head, NULL, 0);
}

static bool take_hashes(struct passes *s, uint64_t first, uint32_t count, uint64_t *out) {
    struct frame_start start;
    return receive_start(&s->line, &start, PRECOPY_STALL_MS) && start.header.type == WIRE_SYNC_HASHES &&
           start.head.sync_hashes.first == first && start.head.sync_hashes.count == count &&
           start.header.length == WIRE_HEAD_BYTES + count * sizeof *out &&
           receive_all(&s->line, out, count * sizeof *out, PRECOPY_STALL_MS);
}

static uint64_t bytes_told(const struct content *content) {
    return content->layout.bytes < WIRE_MOST_SEEN ? content->layout.bytes : WIRE_MOST_SEEN;
}

// Tells that the leaves below this one are compared or copied, unless it did so a moment ago. A newcomer that was up to
// date once tells only what it holds after a pass.
static void advance(struct passes *s, uint64_t leaf) {
    struct precopy *p = s->line.precopy;
    const struct delta_layout *layout = &s->content->layout;
    int64_t now = platform_now_ns();
    if (s->up_to_date || (s->told_ns != 0 && now < s->told_ns + PRECOPY_TELL_MS * MS_NS)) return;
    s->told_ns = now;
    uint64_t total = bytes_told(s->content);
    double part = layout->leaf_count == 0 ? 0 : (double)leaf / (double)layout->leaf_count;
    pthread_mutex_lock(&p->lock);
    p->progress = (struct wire_progress){
        .done = (uint64_t)(part * (double)total), .total = total, .span_us = (uint64_t)((now - s->began_ns) / US_NS)};
    if (p->news == PRECOPY_QUIET) p->news = PRECOPY_ADVANCED;
    pthread_mutex_unlock(&p->lock);
    wake_signal(p->wake);
}

static bool take_leaf(struct passes *s, uint64_t leaf) {
    struct frame_start start;
    struct delta_piece piece = delta_layout_find(&s->content->layout, leaf);
    const struct delta_entry *entry = &s->content->layout.entries[piece.entry];
    if (!receive_start(&s->line, &start, PRECOPY_STALL_MS) || start.header.type != WIRE_SYNC_LEAF ||
        start.head.sync_leaf.leaf != leaf || start.head.sync_leaf.coding != WIRE_SYNC_PLAIN ||
        start.header.length != WIRE_HEAD_BYTES + piece.length)
        return false;
    uint8_t *to = (uint8_t *)entry->data + piece.offset, *staging = device_staging(entry->queue, to, piece.length);
    if (staging == NULL) return false;
    if (!s->wrote) content_mark_torn(&s->content->layout);
    s->wrote = true;
    if (!receive_all(&s->line, staging, piece.length, PRECOPY_STALL_MS)) {
        device_unmap(entry->queue, staging);
        return false;
    }
    s->content->leaves[leaf] = hash_xxh3_64(staging, piece.length);
    device_unstage(entry->queue, to, staging, piece.length);
    s->fetched += piece.length;
    s->last = leaf;
    advance(s, leaf + 1);
    return device_await_fence(entry->queue, device_mark(entry->queue));
}

// Asks for the leaves of a range that differ.
static bool ask_leaves(struct passes *s, uint64_t first, const uint64_t *theirs) {
    const uint64_t *mine = s->content->leaves + first;
    uint32_t count = range_length(s, first);
    for (uint32_t i = 0, end; i < count; i = end) {
        end = i;
        while (end < count && end - i < WIRE_SYNC_MAX_LEAVES && mine[end] != theirs[end]) end++;
        if (end > i && !ask(s, WIRE_SYNC_ASK, first + i, end - i)) return false;
        if (end == i) end++;
    }
    return true;
}

static bool take_leaves(struct passes *s, uint64_t first, const uint64_t *theirs) {
    uint32_t count = range_length(s, first);
    for (uint32_t i = 0; i < count; i++)
        if (s->content->leaves[first + i] != theirs[i] && !take_leaf(s, first + i)) return false;
    return true;
}

// Makes one pass. While the leaves of one range are on their way, the hashes of the next one are.
static bool pass(struct passes *s) {
    uint64_t leaves = s->content->layout.leaf_count;
    uint32_t length = range_length(s, 0);
    s->fetched = 0;
    s->began_ns = platform_now_ns();
    advance(s, 0);
    if (leaves == 0) return true;
    if (!ask(s, WIRE_SYNC_ASK_HASHES, 0, length) || !take_hashes(s, 0, length, s->theirs[0])) return false;
    for (uint64_t first = 0, next, n = 0; first < leaves; first = next, n++) {
        next = first + range_length(s, first);
        length = next < leaves ? range_length(s, next) : 0;
        if (length > 0 && !ask(s, WIRE_SYNC_ASK_HASHES, next, length)) return false;
        if (!ask_leaves(s, first, s->theirs[n % 2])) return false;
        if (length > 0 && !take_hashes(s, next, length, s->theirs[(n + 1) % 2])) return false;
        if (!take_leaves(s, first, s->theirs[n % 2])) return false;
        advance(s, next);
    }
    return true;
}

// Tells after a pass how much the newcomer holds: all but what this pass and the one before, which fetched `before`
// bytes, both found to differ. So a state that changes faster than it is copied is not held.
static void tell_held(struct passes *s, uint64_t before) {
    struct precopy *p = s->line.precopy;
    uint64_t total = bytes_told(s->content), differs = s->fetched < before ? s->fetched : before;
    struct wire_progress held = {.done = differs < total ? total - differs : 0, .total = total};
    pthread_mutex_lock(&p->lock);
    if (!s->up_to_date)
        p->news = PRECOPY_UP_TO_DATE;
    else if (p->news == PRECOPY_QUIET && held.done != p->progress.done)
        p->news = PRECOPY_ADVANCED;
    p->progress = held;
    pthread_mutex_unlock(&p->lock);
    wake_signal(p->wake);
}

static void tell_lost(struct precopy *p) {
    pthread_mutex_lock(&p->lock);
    p->news = PRECOPY_LOST;
    p->progress.done = p->progress.span_us = 0;
    pthread_mutex_unlock(&p->lock);
    wake_signal(p->wake);
}

static bool rest(struct precopy *p, int64_t until) {
    pthread_mutex_lock(&p->lock);
    while (!is_over(p, true) && platform_cond_wait(&p->resting, &p->lock, until)) continue;
    pthread_mutex_unlock(&p->lock);
    return !is_over(p, true);
}

// Asks whether the donor has changed the leaf that was fetched last. Programs write a state from front to back, so the
// rest has changed by then.
static bool probe(struct passes *s, bool *changed) {
    uint64_t theirs;
    if (!ask(s, WIRE_SYNC_ASK_HASHES, s->last, 1) || !take_hashes(s, s->last, 1, &theirs)) return false;
    *changed = theirs != s->content->leaves[s->last];
    return true;
}

// A spare may wait for days for a state that seldom changes.
static int64_t until_probe(int64_t unchanged_ns) {
    int64_t ns = unchanged_ns / PROBE_PART;
    return ns < PROBE_MS * MS_NS ? PROBE_MS * MS_NS : ns > PROBE_MOST_MS * MS_NS ? PROBE_MOST_MS * MS_NS : ns;
}

// Waits until the next pass is due: right after a change, but only so often, and else after a rest. False: the stream
// has ended.
static bool await_next(struct passes *s, int64_t pass_ns) {
    struct precopy *p = s->line.precopy;
    int64_t ms = REFRESH_PART * pass_ns / MS_NS, now = platform_now_ns();
    ms = ms < PRECOPY_REFRESH_MS ? PRECOPY_REFRESH_MS : ms > REFRESH_MOST_MS ? REFRESH_MOST_MS : ms;
    int64_t until = now + ms * MS_NS;
    bool changed = s->fetched > 0, probes = s->follows > 0 && s->content->layout.leaf_count > 0;
    if (changed) s->changed_ns = now;
    for (; probes && !changed && now < until; now = platform_now_ns())
        if (!rest(p, now + until_probe(now - s->changed_ns)) || !probe(s, &changed)) return false;
    if (!probes || !changed) return rest(p, until);
    s->follows--;
    return !is_over(p, true);
}

static bool hash_own(struct precopy *p) {
    while (!content_hash(p->content, platform_now_ns() + LOOK_MS * MS_NS))
        if (is_over(p, true) || content_error(p->content) != NULL) return false;
    return content_error(p->content) == NULL;
}

// Passes until the stream ends.
static void copy(struct precopy *p, struct passes *s) {
    uint64_t before = UINT64_MAX;
    bool goes_on = hash_own(p);
    while (goes_on) {
        if (!pass(s)) return;
        LOG(LOG_INFO, "pre-copy: fetched %llu of %llu bytes in %.0f ms", (unsigned long long)s->fetched,
            (unsigned long long)s->content->layout.bytes, (double)(platform_now_ns() - s->began_ns) / (double)MS_NS);
        bool enough = s->fetched == 0 || s->fetched > before / 2;
        if (enough || s->up_to_date) tell_held(s, before);
        before = s->fetched;
        s->up_to_date |= enough;
        if (s->up_to_date) goes_on = await_next(s, platform_now_ns() - s->began_ns);
    }
}

static void *receive(void *context) {
    struct precopy *p = context;
    struct passes *s = calloc(1, sizeof *s);
    struct transport *stream = p->from;
    platform_thread_lower_priority();
    if (s != NULL) {
        s->line = (struct line){.precopy = p, .stream = stream, .receives = true};
        s->content = p->content;
        s->last = s->content->layout.leaf_count - 1;
        s->follows = FOLLOWS_MOST;
        s->changed_ns = platform_now_ns();
        copy(p, s);
    }
    free(s);
    pthread_mutex_lock(&p->lock);
    p->from = NULL;
    pthread_mutex_unlock(&p->lock);
    transport_free(stream);
    tell_lost(p);
    return NULL;
}

static bool may_write_all(const struct content *content) {
    for (size_t i = 0; i < content->layout.count; i++) {
        const struct delta_entry *entry = &content->layout.entries[i];
        if (entry->bytes > 0 && (entry->read_only || !device_is_writable(entry->queue, entry->data, entry->bytes)))
            return false;
    }
    return true;
}

bool precopy_receive(struct precopy *p, struct transport *stream, int wake) {
    precopy_end_receiving(p);
    if (p->content == NULL || !may_write_all(p->content)) {
        transport_free(stream);
        return false;
    }
    p->from = stream;
    p->wake = wake;
    atomic_store(&p->ends, false);
    p->receives = platform_thread_start(&p->receiver, "pccl:precopy", receive, p);
    if (p->receives) return true;
    p->from = NULL;
    transport_free(stream);
    return false;
}

enum precopy_news precopy_take_news(struct precopy *p, struct wire_progress *progress) {
    pthread_mutex_lock(&p->lock);
    enum precopy_news news = p->news;
    *progress = p->progress;
    p->news = PRECOPY_QUIET;
    pthread_mutex_unlock(&p->lock);
    return news;
}

void precopy_hurry(struct precopy *p) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->ends, true);
    if (p->from != NULL) transport_hang_up(p->from);
    pthread_cond_broadcast(&p->resting);
    pthread_mutex_unlock(&p->lock);
}

void precopy_end_receiving(struct precopy *p) {
    if (!p->receives) return;
    precopy_hurry(p);
    pthread_join(p->receiver, NULL);
    p->receives = false;
    precopy_take_news(p, &(struct wire_progress){0});
}

// ---- life ----

struct precopy *precopy_new(void) {
    struct precopy *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    if (!platform_cond_init(&p->resting)) {
        free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->reading, NULL);
    return p;
}

void precopy_set_state(struct precopy *p, struct content *content, enum precopy_gives gives) {
    precopy_end_receiving(p);
    pthread_mutex_lock(&p->lock);
    p->gives = false;
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&p->reading);
    struct content *before = p->content;
    p->content = content;
    pthread_mutex_unlock(&p->reading);
    content_free(before);
    pthread_mutex_lock(&p->lock);
    p->gives = gives == PRECOPY_GIVES_AT_ONCE && content != NULL;
    p->never_gives = gives == PRECOPY_GIVES_NEVER;
    p->progress = (struct wire_progress){.total = content == NULL ? 0 : bytes_told(content)};
    pthread_mutex_unlock(&p->lock);
}

bool precopy_has_state(struct precopy *p) {
    pthread_mutex_lock(&p->reading);
    bool has = p->content != NULL;
    pthread_mutex_unlock(&p->reading);
    return has;
}

bool precopy_is_new(struct precopy *p) {
    pthread_mutex_lock(&p->lock);
    bool gives = p->gives;
    pthread_mutex_unlock(&p->lock);
    return !gives && precopy_has_state(p);
}

void precopy_note_sync(struct precopy *p, const struct wire_hash *mask) {
    pthread_mutex_lock(&p->reading);
    bool same = p->content != NULL && wire_hash_equal(&p->content->mask, mask);
    pthread_mutex_unlock(&p->reading);
    pthread_mutex_lock(&p->lock);
    p->gives = p->gives || (same && !p->never_gives);
    pthread_mutex_unlock(&p->lock);
}

void precopy_free(struct precopy *p) {
    if (p == NULL) return;
    precopy_end_receiving(p);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stopping, true);
    for (size_t i = 0; i < PRECOPY_DONATIONS_MOST; i++)
        if (p->donations[i].stream != NULL) transport_hang_up(p->donations[i].stream);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < PRECOPY_DONATIONS_MOST; i++) join_donation(&p->donations[i]);
    content_free(p->content);
    pthread_cond_destroy(&p->resting);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->reading);
    free(p);
}
