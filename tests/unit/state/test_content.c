// The record of memory whose transfer was cut short, against a map with a flag per byte.
#include "check.h"
#include "state/content.h"

enum { BYTES = 400, ENTRIES = 5 };

static uint8_t memory[BYTES];
static bool map[BYTES];
static uint64_t seed = 7;

static size_t below(size_t limit) { return (size_t)(check_random(&seed) % limit); }

static struct delta_layout random_layout(struct delta_entry entries[ENTRIES]) {
    struct delta_layout layout = {.entries = entries, .count = below(ENTRIES + 1)};
    for (size_t i = 0; i < layout.count; i++) {
        size_t begin = below(BYTES), length = below(4) == 0 ? 0 : 1 + below(60);
        entries[i] =
            (struct delta_entry){.data = memory + begin, .bytes = length < BYTES - begin ? length : BYTES - begin};
    }
    return layout;
}

static size_t place_of(const struct delta_layout *layout, size_t entry) {
    return (size_t)((const uint8_t *)layout->entries[entry].data - memory);
}

static void mark(const struct delta_layout *layout, bool value) {
    for (size_t i = 0; i < layout->count; i++)
        for (uint64_t at = 0; at < layout->entries[i].bytes; at++) map[place_of(layout, i) + at] = value;
}

static bool marked(const struct delta_layout *layout) {
    for (size_t i = 0; i < layout->count; i++)
        for (uint64_t at = 0; at < layout->entries[i].bytes; at++)
            if (map[place_of(layout, i) + at]) return true;
    return false;
}

int main(void) {
    struct delta_entry entries[ENTRIES], byte = {.bytes = 1};
    struct delta_layout everything = {.entries = &(struct delta_entry){.data = memory, .bytes = BYTES}, .count = 1};
    CHECK(!content_is_torn(&everything));
    for (int step = 0; step < 3000; step++) {
        check_case("step %d", step);
        struct delta_layout layout = random_layout(entries);
        bool add = below(2) == 0;
        mark(&layout, add);
        if (add)
            content_mark_torn(&layout);
        else
            content_clear_torn(&layout);
        layout = random_layout(entries);
        CHECK_EQ(content_is_torn(&layout), marked(&layout));
        for (size_t i = 0; i < BYTES; i++) {
            byte.data = memory + i;
            CHECK_EQ(content_is_torn(&(struct delta_layout){.entries = &byte, .count = 1}), map[i]);
        }
    }
    content_clear_torn(&everything);
    CHECK(!content_is_torn(&everything));
    return check_status();
}
