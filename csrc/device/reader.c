#include "device/reader.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/platform.h"
#include "base/stream.h"
#include "device/memory.h"

enum { STATE_READING = 1, STATE_ABANDONED = 2, STATE_NEXT = 4 }; // the rest counts the reads

struct reader {
    _Atomic uint64_t state;
    jmp_buf *gone;
    _Atomic pid_t thread;
    uint64_t seen; // by the watcher
    int64_t seen_at;
    _Alignas(64) uint8_t bytes[READER_BYTES + STREAM_ALIGN];
};

struct reader *reader_new(void) {
    struct reader *reader = aligned_alloc(_Alignof(struct reader), sizeof *reader);
    if (reader == NULL) return NULL;
    atomic_init(&reader->state, 0);
    reader->gone = NULL;
    atomic_init(&reader->thread, 0);
    reader->seen = 0;
    reader->seen_at = 0;
    return reader;
}

void reader_free(struct reader *reader) { free(reader); }

void reader_enter(struct reader *reader, jmp_buf *gone) {
    reader->gone = gone;
    atomic_store(&reader->thread, platform_thread_id());
}

uint8_t *reader_read(struct reader *reader, pid_t process, uint64_t from, size_t length) {
    uint64_t reading = (atomic_load(&reader->state) + STATE_NEXT) | STATE_READING;
    atomic_store(&reader->state, reading);
    uint8_t *bytes = reader->bytes + from % STREAM_ALIGN; // so that the kernel never copies slowly
    bool read = length <= READER_BYTES && memory_read(process, bytes, from, length);
    uint64_t state = reading;
    if (!atomic_compare_exchange_strong(&reader->state, &state, reading & ~(uint64_t)STATE_READING)) {
        jmp_buf *gone = reader->gone;
        reader_free(reader);
        longjmp(*gone, 1);
    }
    return read ? bytes : NULL;
}

bool reader_is_stuck(struct reader *reader, int64_t now_ns, int64_t patience_ns) {
    uint64_t state = atomic_load(&reader->state);
    if (state != reader->seen) {
        reader->seen = state;
        reader->seen_at = now_ns;
    }
    if ((state & STATE_READING) == 0 || now_ns - reader->seen_at < patience_ns) return false;
    // A thread that only waits for a processor, or whose process was stopped, will return.
    return platform_thread_sleeps(atomic_load(&reader->thread));
}

int64_t reader_look_at(const struct reader *reader, int64_t patience_ns) {
    return (reader->seen & STATE_READING) != 0 ? reader->seen_at + patience_ns : INT64_MAX;
}

bool reader_abandon(struct reader *reader) {
    uint64_t seen = reader->seen;
    return atomic_compare_exchange_strong(&reader->state, &seen, seen | STATE_ABANDONED);
}
