// Ops by name, with the members that said something of each.
#include "master/op_table.h"

#include "check.h"

static struct op_table table;
static struct op_entry *entry;

static enum op_table_result note(uint32_t tag, uint32_t rank, enum wire_op_state state) {
    struct wire_op_name name = {1, tag, 1, 0, 0};
    return op_table_note(&table, &name, rank, state, &entry);
}

static struct op_entry *find(uint32_t tag) {
    struct wire_op_name name = {1, tag, 1, 0, 0};
    return op_table_find(&table, &name);
}

static void test_states(void) {
    check_case("one set of members per state");
    op_table_reset(&table, 70, 4);
    CHECK_EQ(note(7, 69, WIRE_OP_OPEN), OP_TABLE_OK);
    CHECK_EQ(note(7, 5, WIRE_OP_RETAINED), OP_TABLE_OK);
    CHECK_EQ(note(7, 3, WIRE_OP_RETAINED), OP_TABLE_OK);
    CHECK_EQ(note(7, 4, WIRE_OP_DONE), OP_TABLE_OK);
    CHECK_EQ(note(7, 4, WIRE_OP_OPEN), OP_TABLE_TWICE);
    CHECK(find(7) == entry && find(8) == NULL);
    CHECK_EQ(entry->open, 1);
    CHECK_EQ(entry->done, 1);
    CHECK_EQ(entry->retained, 2);
    CHECK_EQ(entry->supplier, 3);
    CHECK(op_entry_is_open(entry, 69) && !op_entry_is_open(entry, 5));
    CHECK(op_entry_has(&table, entry, 5) && !op_entry_has(&table, entry, 6));
    op_table_reset(&table, 0, 0);
}

static void test_limit(void) {
    check_case("the limit is one per member, and ends with the op");
    op_table_reset(&table, 2, 3);
    for (uint32_t tag = 0; tag < 3; tag++) CHECK_EQ(note(tag, 0, WIRE_OP_DONE), OP_TABLE_OK);
    CHECK_EQ(note(3, 0, WIRE_OP_DONE), OP_TABLE_FULL);
    CHECK_EQ(note(3, 1, WIRE_OP_DONE), OP_TABLE_OK);
    op_table_remove(&table, find(1));
    CHECK_EQ(note(4, 0, WIRE_OP_DONE), OP_TABLE_OK);
    CHECK_EQ(table.count, 4);
    op_table_reset(&table, 0, 0);
}

// Against a list, while the table grows and places are used again.
static void test_many(void) {
    enum { OPS = 500 };
    bool live[OPS] = {false};
    uint64_t seed = 3;
    check_case("many");
    op_table_reset(&table, 1, OPS);
    for (int step = 0; step < 20000; step++) {
        uint32_t tag = (uint32_t)(check_random(&seed) % OPS);
        CHECK_EQ(find(tag) != NULL, live[tag]);
        if (live[tag])
            op_table_remove(&table, find(tag));
        else
            CHECK_EQ(note(tag, 0, WIRE_OP_OPEN), OP_TABLE_OK);
        live[tag] = !live[tag];
    }
    uint32_t cursor = 0, count = 0;
    for (struct op_entry *at; (at = op_table_next(&table, &cursor)) != NULL; count++) CHECK(live[at->name.tag]);
    CHECK_EQ(count, table.count);
    op_table_reset(&table, 0, 0);
}

int main(void) {
    test_states();
    test_limit();
    test_many();
    return check_status();
}
