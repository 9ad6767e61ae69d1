// The floor under an all-reduce: a ring that sums fp32 with one thread for each peer, in chunks of 256 KiB, and does
// nothing else. It has no frames, epochs, saved inputs, or losses. It runs once over two TCP connections and once over
// slots in memory that the peers share. bench/methods.py loads it as a shared library.
//
// The tensor is divided into one shard for each peer. A peer sends its own shard, then each chunk that it received: the
// sum with its own values in the first world - 1 rounds, the result in the rounds that follow.
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { CHUNK_BYTES = 256 << 10, CHUNK = CHUNK_BYTES / sizeof(float), SLOTS = 8, SPINS = 200, LINE = 64 };

#define EXPORT __attribute__((visibility("default")))

#ifdef __x86_64__
#define FOR_THIS_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_THIS_CPU
#endif

FOR_THIS_CPU static void add(float *restrict out, const float *restrict one, const float *restrict other,
                             size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = one[i] + other[i];
}

// Copies past the caches: the reader is another core, or reads much later.
static void copy(float *to, const float *from, size_t count) {
#ifdef __x86_64__
    for (; count > 0 && (uintptr_t)to % sizeof(__m128) != 0; count--) *to++ = *from++;
    for (; count >= 4; count -= 4, to += 4, from += 4) _mm_stream_ps(to, _mm_loadu_ps(from));
    _mm_sfence();
#endif
    memcpy(to, from, count * sizeof *to);
}

// ---- the ring ----

struct ring {
    size_t rank, world, count;
};

// A position in the chunks that one peer sends, or receives, in order.
struct cursor {
    const struct ring *ring;
    size_t first; // shard of round 0
    size_t round;
    size_t at;           // within the shard
    size_t begin, count; // of the chunk, within the tensor
};

static size_t shard_begin(const struct ring *ring, size_t shard) { return ring->count * shard / ring->world; }

// Returns whether a chunk is left, and sets `begin` and `count`.
static bool cursor_find(struct cursor *cursor) {
    const struct ring *ring = cursor->ring;
    for (; cursor->round < 2 * (ring->world - 1); cursor->round++, cursor->at = 0) {
        size_t shard = (cursor->first + 2 * ring->world - cursor->round) % ring->world;
        cursor->begin = shard_begin(ring, shard) + cursor->at;
        size_t left = shard_begin(ring, shard + 1) - cursor->begin;
        cursor->count = left < CHUNK ? left : CHUNK;
        if (left > 0) return true;
    }
    return false;
}

static void cursor_advance(struct cursor *cursor) { cursor->at += cursor->count; }

// Returns whether the chunk to send is there: a peer's own, or one that it has received.
static bool can_send(const struct cursor *send, const struct cursor *receive) {
    return send->round == 0 || receive->round >= send->round ||
           (receive->round == send->round - 1 && receive->at >= send->at + send->count);
}

static bool is_sum(const struct cursor *receive) { return receive->round < receive->ring->world - 1; }

static struct cursor sent_by(const struct ring *ring) { return (struct cursor){.ring = ring, .first = ring->rank}; }

static struct cursor received_by(const struct ring *ring) {
    return (struct cursor){.ring = ring, .first = ring->rank + ring->world - 1};
}

// ---- TCP ----

static bool would_block(ssize_t moved) { return moved < 0 && (errno == EAGAIN || errno == EINTR); }

// Sums `count` elements of `input` over `world` peers into `output`. `in` leads from the predecessor, `out` to the
// successor; both are nonblocking. Returns 0, or -1 if a connection failed.
EXPORT int floor_tcp(int in, int out, size_t rank, size_t world, const float *input, float *output, size_t count);
EXPORT int floor_tcp(int in, int out, size_t rank, size_t world, const float *input, float *output, size_t count) {
    static _Thread_local _Alignas(4096) float scratch[CHUNK];
    struct ring ring = {rank, world, count};
    struct cursor next = sent_by(&ring), receive = received_by(&ring);
    size_t sent = 0, received = 0; // bytes of the chunk
    while (true) {
        bool receives = cursor_find(&receive), sends = cursor_find(&next), moved = false;
        if (!receives && !sends) return 0;
        if (receives) {
            char *to = (char *)(is_sum(&receive) ? scratch : output + receive.begin);
            size_t bytes = receive.count * sizeof *output;
            ssize_t got = recv(in, to + received, bytes - received, MSG_DONTWAIT);
            if (got == 0 || (got < 0 && !would_block(got))) return -1;
            moved = got > 0;
            received += moved ? (size_t)got : 0;
            if (received == bytes) {
                if (is_sum(&receive)) add(output + receive.begin, scratch, input + receive.begin, receive.count);
                cursor_advance(&receive);
                received = 0;
            }
        }
        sends = sends && can_send(&next, &receive);
        if (sends) {
            const char *from = (const char *)((next.round == 0 ? input : output) + next.begin);
            size_t bytes = next.count * sizeof *input;
            ssize_t put = send(out, from + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0 && !would_block(put)) return -1;
            moved |= put > 0;
            sent += put > 0 ? (size_t)put : 0;
            if (sent == bytes) {
                cursor_advance(&next);
                sent = 0;
            }
        }
        if (moved) continue;
        struct pollfd both[] = {{receives ? in : -1, POLLIN, 0}, {sends ? out : -1, POLLOUT, 0}};
        poll(both, 2, -1);
    }
}

// ---- shared slots ----

// The counters of one peer. The memory that the peers share is an array of these, zero at first.
struct place {
    _Alignas(LINE) _Atomic uint32_t put;   // chunks in its slots so far, for its successor
    _Alignas(LINE) _Atomic uint32_t taken; // by the successor
    _Alignas(LINE) _Atomic uint32_t bell;  // changes when a neighbour has put or taken one
    _Atomic uint32_t asleep;
    _Alignas(4096) float slots[SLOTS][CHUNK];
};

static void ring_bell(struct place *place) {
    atomic_fetch_add(&place->bell, 1);
    if (atomic_load(&place->asleep)) syscall(SYS_futex, &place->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

// Blocks until the bell is no longer `heard`.
static void await_bell(struct place *place, uint32_t heard) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&place->bell) != heard) return;
#ifdef __x86_64__
        _mm_pause();
#endif
    }
    atomic_store(&place->asleep, 1);
    while (atomic_load(&place->bell) == heard) syscall(SYS_futex, &place->bell, FUTEX_WAIT, heard, NULL, NULL, 0);
    atomic_store(&place->asleep, 0);
}

// Returns the bytes of shared memory that `world` peers need.
EXPORT size_t floor_slots_bytes(size_t world);
EXPORT size_t floor_slots_bytes(size_t world) { return world * sizeof(struct place); }

// Sums as floor_tcp does, by slots in `memory`, which is aligned to 4,096 bytes.
EXPORT void floor_slots(void *memory, size_t rank, size_t world, const float *input, float *output, size_t count);
EXPORT void floor_slots(void *memory, size_t rank, size_t world, const float *input, float *output, size_t count) {
    struct place *own = (struct place *)memory + rank;
    struct place *before = (struct place *)memory + (rank + world - 1) % world;
    struct place *after = (struct place *)memory + (rank + 1) % world;
    struct ring ring = {rank, world, count};
    struct cursor next = sent_by(&ring), receive = received_by(&ring);
    while (true) {
        uint32_t heard = atomic_load(&own->bell);
        bool receives = cursor_find(&receive), sends = cursor_find(&next), moved = false;
        if (!receives && !sends) return;
        uint32_t taken = atomic_load(&before->taken), put = atomic_load(&own->put);
        if (receives && atomic_load(&before->put) != taken) {
            const float *slot = before->slots[taken % SLOTS];
            if (is_sum(&receive))
                add(output + receive.begin, slot, input + receive.begin, receive.count);
            else
                copy(output + receive.begin, slot, receive.count);
            atomic_store(&before->taken, taken + 1);
            ring_bell(before);
            cursor_advance(&receive);
            moved = true;
        }
        if (sends && can_send(&next, &receive) && put - atomic_load(&own->taken) < SLOTS) {
            copy(own->slots[put % SLOTS], (next.round == 0 ? input : output) + next.begin, next.count);
            atomic_store(&own->put, put + 1);
            ring_bell(after);
            cursor_advance(&next);
            moved = true;
        }
        if (!moved) await_bell(own, heard);
    }
}
