// Names of peers come from the network: what is clean, and what is made of the rest.
#include "net/peer_name.h"

#include "check.h"

#define TEN "0123456789"
#define SIXTY TEN TEN TEN TEN TEN TEN

static const struct {
    const char *from, *to; // `to` is NULL: the same
} rows[] = {
    {"host-a", NULL},
    {"worker 3", NULL},
    {"", NULL},
    {SIXTY "abc", NULL},
    {"caf\xc3\xa9", NULL},
    {"\xe6\xa9\x9f\xe5\x99\xa8", NULL},
    {"\xf0\x9f\x90\xa7", NULL},
    {" a", "a"},
    {"a  ", "a"},
    {"   ", ""},
    {SIXTY "abcd", SIXTY "abc"},
    {SIXTY "ab\xc3\xa9", SIXTY "ab"},  // no half of a character
    {SIXTY "a \xc3\xa9", SIXTY "a"},   // and no space before what is cut
    {"a\x1b[31mb", "a?[31mb"},         // a terminal would interpret
    {"a\nb\r", "a?b?"},                //
    {"a\x7f", "a?"},                   //
    {"a\xc2\x9b", "a?"},               // C1 in UTF-8
    {"a\x9b", "a?"},                   // C1 by itself
    {"\xff\xfe", "??"},                //
    {"\xc3", "?"},                     // cut
    {"a\xe6\xa9", "a??"},              //
    {"\xc0\xaf", "??"},                // longer than need be
    {"\xe0\x80\xaf", "???"},           //
    {"\xf0\x80\x80\xaf", "????"},      //
    {"\xed\xa0\x80", "?"},             // a surrogate
    {"\xf4\x90\x80\x80", "????"},      // beyond the last code point
    {"\xf8\x88\x80\x80\x80", "?????"}, //
    {"a\xe2\x80\xae"
     "b",
     "a?b"}, // turns the direction of what follows
    {"a\xe2\x80\xa8"
     "b",
     "a?b"}, // a line separator
    {"a\xe2\x80\x8b"
     "b",
     "a?b"}, // no width
    {"\xef\xbb\xbf"
     "a",
     "?a"},                    // byte order mark
    {"\xef\xbf\xbf", "?"},     // no character
    {"\xf0\x9f\xbf\xbe", "?"}, // no character
    {"\xf3\xa0\x81\x81", "?"}, // a tag
};

static void test_clean(void) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_case("row %zu", i);
        size_t length = strlen(rows[i].from);
        const char *to = rows[i].to == NULL ? rows[i].from : rows[i].to;
        struct wire_name name = peer_name_clean(rows[i].from, length), again;
        CHECK_STR(name.chars, to);
        CHECK_EQ(peer_name_is_clean(rows[i].from, length), rows[i].to == NULL);
        CHECK(peer_name_is_clean(name.chars, strlen(name.chars)));
        again = peer_name_clean(name.chars, strlen(name.chars));
        CHECK_MEM(again.chars, name.chars, sizeof name.chars); // and zeros to the end
    }
    check_case("a zero inside");
    CHECK(!peer_name_is_clean("a\0b", 3));
    CHECK_STR(peer_name_clean("a\0b", 3).chars, "a?b");
}

static void test_random(void) {
    check_case("random bytes");
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        size_t length = check_random(&seed) % 80;
        char *bytes = malloc(length > 0 ? length : 1);
        for (size_t i = 0; i < length; i++) bytes[i] = (char)check_random(&seed);
        struct wire_name name = peer_name_clean(bytes, length);
        CHECK(memchr(name.chars, 0, sizeof name.chars) != NULL);
        CHECK(peer_name_is_clean(name.chars, strlen(name.chars)));
        free(bytes);
    }
}

static void test_labels(void) {
    check_case("labels");
    struct wire_id id = {{0xab, 0x12, 0xcd, 0xef, 5}};
    struct wire_name none = {{0}}, name = {"host-a"}, longest = {SIXTY "abc"};
    CHECK_STR(peer_label(&id, &none).chars, "peer ab12cdef");
    CHECK_STR(peer_label(&id, &name).chars, "peer host-a (ab12cdef)");
    CHECK_STR(peer_label_with(&id, &none, "join 5").chars, "peer ab12cdef (join 5)");
    CHECK_STR(peer_label_with(&id, &name, "join 5").chars, "peer host-a (ab12cdef, join 5)");
    const char *label = peer_label_with(&id, &longest, SIXTY SIXTY).chars;
    CHECK_EQ(strlen(label), 5 + 63 + 2 + 8 + 2 + PEER_LABEL_MORE - 1 + 1); // whole
}

static void test_host(void) {
    check_case("the host");
    struct wire_name host = peer_name_of_host();
    CHECK(peer_name_is_clean(host.chars, strlen(host.chars)));
}

int main(void) {
    test_clean();
    test_random();
    test_labels();
    test_host();
    return check_status();
}
