// Who has announced that it leaves, as one member knows it.
#include <string.h>

#include "base/platform.h"
#include "check.h"
#include "peer/leaving.h"

static struct leaving l;

static struct wire_id id_of(char name) {
    struct wire_id id = {{(uint8_t)name}};
    return id;
}

static struct epoch *epoch_with(const char *names) {
    static struct wire_member members[8];
    struct wire_epoch told = {.number = 1, .group_epoch = 1, .latency_us = 1, .megabytes_per_s = 1, .members = members};
    for (; names[told.count]; told.count++) members[told.count] = (struct wire_member){.id = id_of(names[told.count])};
    struct wire_id self = id_of(names[0]);
    struct epoch_ring ring;
    REQUIRE(epoch_find_ring(&told, &self, &ring));
    struct epoch *epoch = epoch_new(&told, &ring, &(struct wire_header){.run = 1, .generation = 1}, false);
    REQUIRE(epoch != NULL);
    return epoch;
}

static void note(char name, uint32_t within_ms, const struct epoch *epoch, int64_t now) {
    struct wire_leaving told = {.id = id_of(name), .within_ms = within_ms, .at_update = 1};
    leaving_note(&l, &told, epoch, now);
}

static void test_others(void) {
    struct epoch *all = epoch_with("abc"), *fewer = epoch_with("ac");
    leaving_init(&l);
    note('b', 5, all, 100 * MS_NS);
    note('c', WIRE_WITHIN_UNKNOWN, all, 100 * MS_NS);
    note('x', 5, all, 0); // no member
    CHECK_EQ(l.count, 2);
    CHECK_EQ(l.others[0].at_ns, 105 * MS_NS);
    CHECK_EQ(l.others[1].at_ns, INT64_MAX);
    note('b', 7, all, 100 * MS_NS); // the last one counts
    CHECK_EQ(l.count, 2);
    CHECK_EQ(l.others[0].at_ns, 107 * MS_NS);
    leaving_enter(&l, fewer);
    CHECK_EQ(l.count, 1);
    struct wire_id c = id_of('c');
    CHECK(wire_id_equal(&l.others[0].id, &c));
    epoch_put(all);
    epoch_put(fewer);
}

static struct wire_leaving told_at(int64_t now) {
    struct wire_buffer out = {0};
    struct wire_header header;
    struct wire_leaving got = {.within_ms = 0};
    struct wire_id self = id_of('a');
    leaving_tell(&l, &self, (struct wire_header){.run = 1}, now, &out);
    REQUIRE(out.length > WIRE_HEADER_BYTES && wire_header_decode(out.bytes, &header));
    CHECK_EQ(header.type, WIRE_LEAVING);
    CHECK(wire_decode_leaving(out.bytes + WIRE_HEADER_BYTES, header.length, &got));
    CHECK(wire_id_equal(&got.id, &self));
    wire_buffer_fini(&out);
    return got;
}

static void test_self(void) {
    struct wire_buffer out = {0};
    struct wire_id self = id_of('a');
    leaving_init(&l);
    leaving_tell(&l, &self, (struct wire_header){.run = 1}, 0, &out);
    CHECK_EQ(out.length, 0); // nothing was announced
    wire_buffer_fini(&out);
    leaving_announce(&l, 500, true, 1000 * MS_NS);
    CHECK_EQ(told_at(1000 * MS_NS).within_ms, 500);
    CHECK_EQ(told_at(1000 * MS_NS).at_update, 1);
    CHECK_EQ(told_at(1200 * MS_NS).within_ms, 300); // to the next master
    CHECK_EQ(told_at(9000 * MS_NS).within_ms, 0);
    leaving_announce(&l, WIRE_WITHIN_UNKNOWN, false, 0);
    CHECK_EQ(told_at(9000 * MS_NS).within_ms, WIRE_WITHIN_UNKNOWN);
    CHECK_EQ(told_at(0).at_update, 0);
}

int main(void) {
    test_others();
    test_self();
    return check_status();
}
