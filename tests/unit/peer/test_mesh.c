// Which links memberships require, and what is said of those that are missing.
#include "peer/mesh.h"

#include <string.h>

#include "base/platform.h"
#include "check.h"

enum { SELF = 5, LIMIT_MS = 1000 };

static struct mesh mesh;
static struct member_output out;
static struct mesh_event at;
static struct wire_member members[8];

static struct wire_id id_of(uint8_t number) { return (struct wire_id){{number}}; }

static uint8_t with_share; // 0: nobody

// A ring of members with these join numbers, which are their ids, too.
static struct epoch_ring ring_of(const uint8_t *numbers, uint32_t count) {
    struct epoch_ring ring = {.members = members, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        members[i] = (struct wire_member){.id = id_of(numbers[i]), .join_number = numbers[i], .lanes = 2};
        members[i].address.port = numbers[i];
        members[i].weight = numbers[i] == with_share;
        if (numbers[i] == SELF) ring.rank = i;
    }
    return ring;
}

static void begin(void) {
    struct wire_id self = id_of(SELF);
    mesh_init(&mesh, &self, 3);
    mesh.join_number = SELF;
    member_output_clear(&out);
    at = (struct mesh_event){.header = {.epoch = 7}, .accepted = true, .limit_ns = LIMIT_MS * MS_NS, .now_ns = MS_NS};
}

static void end(void) {
    mesh_fini(&mesh);
    member_output_clear(&out);
}

static void enter(const uint8_t *numbers, uint32_t count) {
    struct epoch epoch = {.number = at.header.epoch, .group_epoch = at.header.epoch, .ring = ring_of(numbers, count)};
    CHECK(mesh_begin_epoch(&mesh, &at, NULL, &epoch, false));
    mesh_make(&mesh, &at, true, &out);
}

static size_t count(enum member_action_kind kind) {
    size_t found = 0;
    for (size_t i = 0; i < out.count; i++) found += out.actions[i].kind == kind;
    return found;
}

static bool says(uint16_t type) {
    struct wire_header header;
    for (size_t i = 0; i < out.frames.length; i += WIRE_HEADER_BYTES + header.length) {
        REQUIRE(wire_header_decode(out.frames.bytes + i, &header));
        if (header.type == type) return true;
    }
    return false;
}

static uint64_t serial = 1; // of the connections that come up or are lost

static void up(uint8_t number, uint32_t index) {
    struct wire_id id = id_of(number);
    member_output_clear(&out);
    mesh_link_up(&mesh, &at, &id, index, serial, 10, &out);
}

static void lost(uint8_t number, uint32_t index) {
    struct wire_id id = id_of(number);
    member_output_clear(&out);
    mesh_link_lost(&mesh, &at, &id, index, serial, WIRE_LINK_BROKEN, &out);
}

// A ring of four: the neighbours have lanes, the member opposite has a direct link alone.
static void test_requirements(void) {
    begin();
    enter((const uint8_t[]){SELF, 3, 4, 9}, 4);
    // The later joined of a pair dials: 3 with a direct link and the smaller of both pools, 4 with a direct link.
    CHECK_EQ(count(MEMBER_DIAL), 3 + 1);
    struct wire_link_hello hello = {.from = id_of(9), .kind = WIRE_LINK_DATA, .index = 2};
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_ACCEPT);
    hello.index = 3; // no pool is so large
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_REJECT);
    hello = (struct wire_link_hello){.from = id_of(3), .kind = WIRE_LINK_DATA};
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_REJECT); // it is this peer that dials
    hello.from = id_of(8);
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_PARK);
    CHECK_EQ(mesh_reach(&mesh, &hello.from) == NULL, true);
    hello.from = id_of(4);
    REQUIRE(mesh_reach(&mesh, &hello.from) != NULL);
    CHECK_EQ(mesh_reach(&mesh, &hello.from)->addresses[0].port, 4);
    for (uint32_t index = 0; index < 3; index++) {
        up(3, index);
        up(9, index);
        CHECK_EQ(count(MEMBER_LINKS_READY), 0);
    }
    up(4, 0);
    CHECK_EQ(count(MEMBER_LINKS_READY), 1);
    CHECK(says(WIRE_LINKED));
    up(8, 0);
    CHECK_EQ(count(MEMBER_DROP_PEER), 1); // nobody's
    end();
}

static void test_losses(void) {
    begin();
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up(3, index);
    CHECK(mesh.linked);
    lost(3, 1);
    CHECK(!mesh.linked && says(WIRE_LINK_DOWN));
    lost(3, 2);
    CHECK(!says(WIRE_LINK_DOWN)); // one failure of a pair is many broken connections
    lost(3, 2);
    CHECK_EQ(out.frames.length, 0); // it is down already
    CHECK_EQ(mesh_deadline(&mesh, true), at.now_ns + LIMIT_MS * MS_NS);
    at.now_ns = mesh_deadline(&mesh, true);
    member_output_clear(&out);
    mesh_tick(&mesh, &at, &out);
    CHECK(says(WIRE_LINK_DOWN)); // again, for the master did nothing about it
    end();
}

// Of a pair the one dials that nobody can dial.
static void test_closed(void) {
    static const struct {
        const char *name;
        uint8_t self, other;
        bool self_closed, other_closed, dials;
    } rows[] = {
        {"the later joined", SELF, 3, false, false, true},
        {"both closed: the later joined too", SELF, 3, true, true, true},
        {"it cannot be dialled", SELF, 9, true, false, true},
        {"the other cannot", SELF, 3, false, true, false},
        {"neither has to", SELF, 9, false, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("%s", rows[i].name);
        begin();
        struct epoch epoch = {
            .number = 7, .group_epoch = 7, .ring = ring_of((const uint8_t[]){SELF, rows[i].other}, 2)};
        members[0].reach.closed = rows[i].self_closed;
        members[1].reach.closed = rows[i].other_closed;
        CHECK(mesh_begin_epoch(&mesh, &at, NULL, &epoch, false));
        mesh_make(&mesh, &at, true, &out);
        CHECK_EQ(count(MEMBER_DIAL), rows[i].dials ? 3 : 0);
        struct wire_link_hello hello = {.from = id_of(rows[i].other), .kind = WIRE_LINK_DATA};
        CHECK_EQ(mesh_judge(&mesh, &hello), rows[i].dials ? MEMBER_REJECT : MEMBER_ACCEPT);
        end();
    }
}

// Two that nobody can dial meet at a relay, if there is one.
static void test_relay(void) {
    for (int later = 0; later < 2; later++) {
        check_case("%s", later ? "the later joined begins" : "the other one waits");
        uint8_t other = later ? 3 : 9;
        begin();
        mesh.relay = true;
        mesh.spare = 6;
        struct epoch epoch = {.number = 7, .group_epoch = 7, .ring = ring_of((const uint8_t[]){SELF, other}, 2)};
        members[0].reach.closed = members[1].reach.closed = 1;
        CHECK(mesh_begin_epoch(&mesh, &at, NULL, &epoch, false));
        mesh_make(&mesh, &at, true, &out);
        CHECK_EQ(count(MEMBER_DIAL), 0);
        CHECK_EQ(count(MEMBER_RELAY), 3);
        for (size_t i = 0; i < out.count; i++) CHECK_EQ(out.actions[i].waits, !later);
        struct wire_id id = id_of(other);
        member_output_clear(&out);
        mesh_link_failed(&mesh, &at, &id, 1, &out);
        CHECK_EQ(count(MEMBER_RELAY), later); // one dial may fail; who waits is told of none
        for (uint32_t index = 0; index < 3; index++) {
            member_output_clear(&out);
            mesh_link_up(&mesh, &at, &id, index, serial, 40000, &out);
        }
        CHECK(mesh.linked && count(MEMBER_RELAY) == 0 && count(MEMBER_DIAL) == 0); // no spare lanes there
        end();
    }
}

static const struct member_action *relay_action(uint32_t skip) {
    for (size_t i = 0; i < out.count; i++)
        if (out.actions[i].kind == MEMBER_RELAY && skip-- == 0) return &out.actions[i];
    return NULL;
}

// A relay of the settings that fails costs no link if a member relays, too. The other end waits at both.
static void test_relay_fails(void) {
    for (int later = 0; later < 2; later++) {
        check_case("%s", later ? "the later joined begins" : "the other one waits");
        uint8_t other = later ? 3 : 9;
        struct wire_id id = id_of(other);
        begin();
        mesh.relay = true;
        struct epoch epoch = {.number = 7, .group_epoch = 7, .ring = ring_of((const uint8_t[]){SELF, other, 6}, 3)};
        members[0].reach.closed = members[1].reach.closed = 1;
        members[2].reach.relays = WIRE_RELAYS_BOTH;
        CHECK(mesh_begin_epoch(&mesh, &at, NULL, &epoch, false));
        mesh_make(&mesh, &at, true, &out);
        const struct member_action *first = relay_action(0);
        REQUIRE(first != NULL && first->index == 0 && first->reach.count == 0 && first->again == later);
        if (later) {
            member_output_clear(&out);
            mesh_link_failed(&mesh, &at, &id, 0, &out);
        }
        const struct member_action *second = relay_action(!later);
        REQUIRE(second != NULL && second->index == 0 && second->reach.count > 0);
        CHECK(!second->again && second->waits == !later);
        CHECK_EQ(second->reach.addresses[0].port, 6);
        end();
    }
}

// The ports at which one end dials its first and its second choice for link 0, or waits.
static uint32_t choices(uint8_t self, uint8_t other, uint64_t group_epoch, bool *dials) {
    struct wire_id id = id_of(self), far = id_of(other);
    begin();
    mesh.self = id;
    mesh.join_number = self;
    struct epoch epoch = {
        .number = group_epoch, .group_epoch = group_epoch, .ring = ring_of((const uint8_t[]){3, 4, 6, 7, 8, 9}, 6)};
    for (uint32_t i = 0; i < 6; i++) {
        uint8_t number = (uint8_t)members[i].join_number;
        if (number == self) epoch.ring.rank = i;
        members[i].reach.closed = number == 3 || number == 9;
        members[i].reach.relays = number != 4;
    }
    CHECK(mesh_begin_epoch(&mesh, &at, NULL, &epoch, false));
    mesh_make(&mesh, &at, true, &out);
    const struct member_action *first = relay_action(0);
    REQUIRE(first != NULL && first->reach.count > 0 && first->index == 0);
    uint32_t ports = first->reach.addresses[0].port;
    *dials = !first->waits;
    if (*dials) {
        CHECK(first->again);
        member_output_clear(&out);
        mesh_link_failed(&mesh, &at, &far, 0, &out);
    }
    const struct member_action *second = relay_action(*dials ? 0 : 1);
    REQUIRE(second != NULL && second->index == 0 && !second->again && second->waits != *dials);
    ports = ports << 8 | second->reach.addresses[0].port;
    end();
    return ports;
}

// Without a relay of the settings, a member that can be dialled and permits it is one. Both ends choose the same two.
static void test_member_relays(void) {
    uint32_t firsts = 0;
    for (uint64_t group_epoch = 1; group_epoch < 40; group_epoch++) {
        bool later_dials, earlier_dials;
        uint32_t ports = choices(9, 3, group_epoch, &later_dials);
        CHECK_EQ(choices(3, 9, group_epoch, &earlier_dials), ports);
        CHECK(later_dials && !earlier_dials);
        CHECK(ports >> 8 != (ports & 0xff) && ports >> 8 != 4 && (ports & 0xff) != 4);
        firsts |= 1U << (ports >> 8);
    }
    CHECK_EQ(firsts, 1U << 6 | 1U << 7 | 1U << 8); // no bad one for ever
}

// A lane that was made for another ring carries bytes still.
static void test_former_neighbour(void) {
    begin();
    enter((const uint8_t[]){SELF, 3, 4}, 3);
    for (uint32_t index = 0; index < 3; index++) {
        up(3, index);
        up(4, index);
    }
    at.header.epoch++;
    enter((const uint8_t[]){SELF, 2, 3, 4, 1}, 5);
    lost(3, 1);
    CHECK(!says(WIRE_LINK_DOWN)); // nobody is reported
    CHECK_EQ(mesh_deadline(&mesh, true), at.now_ns + MESH_GRACE_MS * MS_NS);
    end();
}

static void test_replaced(void) {
    begin();
    enter((const uint8_t[]){SELF, 9}, 2);
    for (uint32_t index = 0; index < 3; index++) up(9, index);
    CHECK_EQ(mesh_deadline(&mesh, true), INT64_MAX);
    up(9, 1); // the other side saw it break first
    CHECK_EQ(mesh_deadline(&mesh, true), at.now_ns + MESH_GRACE_MS * MS_NS);
    at.now_ns += MESH_GRACE_MS * MS_NS;
    member_output_clear(&out);
    mesh_tick(&mesh, &at, &out);
    CHECK(says(WIRE_LINK_DOWN)); // its own: a fresh group epoch is wanted
    CHECK_EQ(mesh_deadline(&mesh, true), INT64_MAX);
    end();
}

static void test_candidate(void) {
    begin();
    at.accepted = false;
    struct epoch_ring ring = ring_of((const uint8_t[]){SELF, 3}, 2);
    CHECK(mesh_begin_candidate(&mesh, &at, 4, &ring));
    mesh_make(&mesh, &at, true, &out);
    struct wire_id id = id_of(3);
    member_output_clear(&out);
    mesh_link_failed(&mesh, &at, &id, 0, &out);
    CHECK_EQ(count(MEMBER_DIAL), 1); // one dial may fail
    CHECK(!says(WIRE_LINKED));
    member_output_clear(&out);
    mesh_link_narrow(&mesh, &id);
    mesh_link_failed(&mesh, &at, &id, 0, &out);
    CHECK(says(WIRE_LINKED) && !mesh.candidate.open);
    CHECK_EQ(mesh.answer.count, 1);
    CHECK_EQ(mesh.answer.narrow[0], 1);
    CHECK_EQ(mesh.answer.attempt, 4);
    member_output_clear(&out);
    mesh_end_candidate(&mesh, &out);
    CHECK_EQ(count(MEMBER_DROP_PEER), 1);
    CHECK_EQ(mesh.count, 0);
    end();
}

static void up_far(uint8_t number, uint32_t index) {
    struct wire_id id = id_of(number);
    member_output_clear(&out);
    mesh_link_up(&mesh, &at, &id, index, serial, 40000, &out);
}

// Of a far neighbour. 2 of 3 and 2 are lanes that must be there.
static void test_spare(void) {
    begin();
    mesh.spare = 20;
    enter((const uint8_t[]){SELF, 3}, 2);
    CHECK_EQ(count(MEMBER_DIAL), 3);
    check_case("none before the others are there");
    up_far(3, 0);
    up_far(3, 1);
    CHECK_EQ(count(MEMBER_DIAL), 0);
    up_far(3, 2);
    CHECK(mesh.linked);              // nobody waits for them
    CHECK_EQ(count(MEMBER_DIAL), 3); // 1 and an eighth of them
    check_case("more of them with each that is made");
    for (uint32_t index = 3; index < 7; index++) {
        up_far(3, index);
        CHECK_EQ(count(MEMBER_DIAL), 4);
    }
    up_far(3, 7);
    CHECK_EQ(count(MEMBER_DIAL), 1); // all that there is room for
    for (uint32_t index = 8; index < 23; index++) {
        up_far(3, index);
        CHECK_EQ(count(MEMBER_DIAL), 0);
    }
    check_case("one that is lost takes bytes with it, and nobody is reported");
    lost(3, 7);
    CHECK(mesh.linked && !says(WIRE_LINK_DOWN) && count(MEMBER_DIAL) == 0);
    CHECK_EQ(mesh_deadline(&mesh, true), at.now_ns + MESH_GRACE_MS * MS_NS);
    up_far(3, 8); // again: the other side saw it break first
    CHECK_EQ(count(MEMBER_DIAL), 0);
    check_case("it is made again in the next epoch");
    at.header.epoch++;
    member_output_clear(&out);
    enter((const uint8_t[]){SELF, 3}, 2);
    CHECK_EQ(count(MEMBER_DIAL), 1);
    CHECK(mesh.linked);

    check_case("those that break again and again are none");
    for (uint32_t index = 3; index < 23; index++) up_far(3, index);
    lost(3, 3);
    CHECK(!says(WIRE_LINK_DOWN) && mesh_deadline(&mesh, true) == at.now_ns + MESH_GRACE_MS * MS_NS);
    at.header.epoch++;
    enter((const uint8_t[]){SELF, 3}, 2);
    CHECK_EQ(count(MEMBER_DIAL), 0);
    end();

    check_case("a neighbour that wants none, or that is near");
    begin();
    mesh.spare = 6;
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up_far(3, index);
    struct wire_id id = id_of(3);
    member_output_clear(&out);
    mesh_link_failed(&mesh, &at, &id, 3, &out);
    CHECK(mesh.linked && count(MEMBER_DIAL) == 0 && out.frames.length == 0);
    at.header.epoch++;
    enter((const uint8_t[]){SELF, 3}, 2);
    CHECK_EQ(count(MEMBER_DIAL), 0);
    end();
    check_case("one that was dialled in an epoch before tells nothing");
    begin();
    mesh.spare = 6;
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up_far(3, index);
    CHECK_EQ(count(MEMBER_DIAL), 1);
    at.header.epoch++;
    enter((const uint8_t[]){SELF, 9, 3, 8}, 4); // no neighbour in the ring
    mesh_link_failed(&mesh, &at, &id, 3, &out);
    at.header.epoch++;
    member_output_clear(&out);
    enter((const uint8_t[]){SELF, 3}, 2);
    CHECK_EQ(count(MEMBER_DIAL), 1);
    end();
    check_case("a near one");
    begin();
    mesh.spare = 6;
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up(3, index);
    CHECK(mesh.linked && count(MEMBER_DIAL) == 0);
    end();

    check_case("not too many at once");
    begin();
    mesh.spare = 60;
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up_far(3, index);
    uint32_t dialled = (uint32_t)count(MEMBER_DIAL), made = 0;
    CHECK_EQ(dialled, 8);
    while (made < dialled) {
        up_far(3, 3 + made++);
        dialled += (uint32_t)count(MEMBER_DIAL);
        CHECK(dialled - made <= 24);
    }
    CHECK_EQ(made, 60);
    end();

    check_case("one that has proved who it is counts as made");
    begin();
    mesh.spare = 60;
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 2; index++) up_far(3, index);
    mesh_link_proved(&mesh, &at, &id, 2, &out); // no spare lane: the links that must be there are awaited
    CHECK(!mesh.linked && count(MEMBER_DIAL) == 0);
    up_far(3, 2);
    dialled = (uint32_t)count(MEMBER_DIAL), made = 0;
    CHECK_EQ(dialled, 8);
    while (made < dialled) {
        member_output_clear(&out);
        mesh_link_proved(&mesh, &at, &id, 3 + made++, &out);
        dialled += (uint32_t)count(MEMBER_DIAL);
        CHECK(dialled - made <= 24);
    }
    CHECK_EQ(made, 60);
    for (uint32_t index = 3; index < 63; index++) {
        up_far(3, index);
        CHECK_EQ(count(MEMBER_DIAL), 0);
    }
    struct wire_id stranger = id_of(99);
    mesh_link_proved(&mesh, &at, &stranger, 3, &out);
    CHECK_EQ(count(MEMBER_DIAL), 0);
    end();

    check_case("which of them are let in");
    begin();
    mesh.spare = 6;
    enter((const uint8_t[]){SELF, 9, 8, 7}, 4);
    struct wire_link_hello hello = {.from = id_of(9), .kind = WIRE_LINK_DATA, .index = 8};
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_ACCEPT);
    hello.index = 9;
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_REJECT);
    hello = (struct wire_link_hello){.from = id_of(8), .kind = WIRE_LINK_DATA, .index = 8};
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_PARK); // no neighbour in the ring
    end();
}

// One has a share: tensors go from all to all, so all have lanes. Spare ones are as many as in a ring altogether.
static void test_weights(void) {
    check_case("lanes lead to all members where tensors are spread");
    with_share = 9;
    begin();
    mesh.spare = 6;
    enter((const uint8_t[]){SELF, 2, 3, 9}, 4);
    CHECK_EQ(count(MEMBER_DIAL), 6); // to 2 and 3, which joined before: all but what 9 dials
    for (uint32_t index = 0; index < 3; index++) {
        up_far(2, index);
        up_far(3, index);
        CHECK(!mesh.linked);
    }
    up_far(9, 0);
    up_far(9, 1);
    CHECK(!mesh.linked);
    up_far(9, 2);
    CHECK(mesh.linked);
    CHECK_EQ(count(MEMBER_DIAL), 2); // one spare lane to each of the two
    for (uint32_t index = 3; index < 7; index++) up_far(3, index);
    CHECK_EQ(count(MEMBER_DIAL), 0);
    struct wire_link_hello hello = {.from = id_of(9), .kind = WIRE_LINK_DATA, .index = 6};
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_ACCEPT);
    hello.index = 7;
    CHECK_EQ(mesh_judge(&mesh, &hello), MEMBER_PARK);
    end();
    with_share = 0;
}

// The loss of a connection that was replaced comes late: the link is up, over the newer one.
static void test_old_news(void) {
    check_case("the loss of a connection that another one has replaced");
    begin();
    enter((const uint8_t[]){SELF, 3}, 2);
    for (uint32_t index = 0; index < 3; index++) up(3, index);
    serial = 2;
    up(3, 0);
    serial = 1;
    lost(3, 0);
    CHECK(!says(WIRE_LINK_DOWN));
    struct wire_id id = id_of(3);
    member_output_clear(&out);
    mesh_link_lost(&mesh, &at, &id, 0, 1, WIRE_LINK_MALFORMED, &out);
    CHECK(says(WIRE_LINK_DOWN)); // the frame was malformed all the same
    at.header.epoch++;           // one report in each epoch
    serial = 2;
    lost(3, 0);
    CHECK(says(WIRE_LINK_DOWN));
    serial = 1;
    end();
}

int main(void) {
    test_old_news();
    test_closed();
    test_relay();
    test_relay_fails();
    test_member_relays();
    test_weights();
    test_spare();
    test_requirements();
    test_losses();
    test_former_neighbour();
    test_replaced();
    test_candidate();
    member_output_fini(&out);
    return check_status();
}
