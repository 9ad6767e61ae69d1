// Which members were lost is told by name, and of many the latest are kept.
#include "peer/departed.h"

#include "check.h"

static struct wire_id id_of(uint32_t number) { return (struct wire_id){{(uint8_t)(number >> 8), (uint8_t)number, 1}}; }

static void test_tell(void) {
    check_case("tell");
    struct departed departed = {0};
    char text[200], small[20];
    struct wire_name a = {"host-a"}, none = {{0}};
    CHECK_EQ(departed_tell(&departed, 0, text, sizeof text), 0);
    CHECK_STR(text, "");
    struct wire_id first = id_of(1), second = id_of(2);
    departed_note(&departed, &first, &a, 5);
    departed_note(&departed, &second, &none, 7);
    CHECK_EQ(departed_tell(&departed, 4, text, sizeof text), 2);
    CHECK_STR(text, "peer host-a (00010100), peer 00020100");
    CHECK_EQ(departed_tell(&departed, 5, text, sizeof text), 1); // of the program it was told before
    CHECK_STR(text, "peer 00020100");
    CHECK_EQ(departed_tell(&departed, 7, text, sizeof text), 0);
    CHECK_EQ(departed_tell(&departed, 0, small, sizeof small), 2);
    CHECK_EQ(strlen(small), sizeof small - 1);
    CHECK_STR(departed_name(&departed, &first)->chars, "host-a");
    CHECK_STR(departed_name(&departed, &second)->chars, "");
    struct wire_id unknown = id_of(3);
    CHECK(departed_name(&departed, &unknown) == NULL);
}

static void test_many(void) {
    check_case("many");
    struct departed departed = {0};
    struct wire_name name = {"a"};
    char text[400];
    for (uint32_t i = 0; i < 3 * DEPARTED_MOST + 1; i++) {
        struct wire_id id = id_of(i);
        departed_note(&departed, &id, &name, i + 1);
    }
    struct wire_id oldest = id_of(2 * DEPARTED_MOST + 1), older = id_of(2 * DEPARTED_MOST);
    CHECK(departed_name(&departed, &oldest) != NULL && departed_name(&departed, &older) == NULL);
    CHECK_EQ(departed_tell(&departed, 0, text, sizeof text), DEPARTED_MOST);
    CHECK(strstr(text, "peer a (00810100), peer a (00820100), peer a (00830100) and 61 more") == text);
}

int main(void) {
    test_tell();
    test_many();
    return check_status();
}
