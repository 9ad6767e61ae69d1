#define _GNU_SOURCE
#include "net/peer_name.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

static const struct {
    uint32_t first, last;
} unprintable[] = {
    {0x0, 0x1f},         // control characters
    {0x7f, 0x9f},        // control characters
    {0xad, 0xad},        // soft hyphen
    {0x61c, 0x61c},      // direction
    {0x180e, 0x180e},    // no width
    {0x200b, 0x200f},    // no width, direction
    {0x2028, 0x202e},    // separators, direction
    {0x2060, 0x206f},    // no width, direction
    {0xd800, 0xf8ff},    // surrogates, private use
    {0xfdd0, 0xfdef},    // no characters
    {0xfe00, 0xfe0f},    // variation selectors
    {0xfeff, 0xfeff},    // byte order mark
    {0xfff0, 0xffff},    // specials
    {0xe0000, 0x10ffff}, // tags, variation selectors, private use
};

static bool is_printable(uint32_t code) {
    for (size_t i = 0; i < sizeof unprintable / sizeof unprintable[0]; i++)
        if (code >= unprintable[i].first && code <= unprintable[i].last) return false;
    return (code & 0xfffe) != 0xfffe;
}

// Reads one character. Returns its number of bytes, and 0 if the bytes at `chars` are no character in UTF-8.
static size_t read_character(const char *chars, size_t length, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; // by the number of bytes: longer forms are refused
    unsigned char first = (unsigned char)chars[0];
    size_t bytes = first < 0x80 ? 1 : first >= 0xf0 && first < 0xf8 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first >= 0x80 && (first < 0xc0 || first >= 0xf8)) return 0;
    if (bytes > length) return 0;
    *code = bytes == 1 ? first : first & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if (((unsigned char)chars[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | ((unsigned char)chars[i] & 0x3f);
    }
    return *code >= least[bytes] && *code <= 0x10ffff ? bytes : 0;
}

struct wire_name peer_name_clean(const char *chars, size_t length) {
    struct wire_name name = {{0}};
    size_t at = 0, kept = 0; // kept: without spaces at the end
    while (length > 0) {
        uint32_t code = 0;
        size_t bytes = read_character(chars, length, &code);
        bool good = bytes > 0 && is_printable(code);
        size_t takes = good ? bytes : 1;
        bool leading = good && code == ' ' && at == 0;
        if (at + takes > WIRE_MAX_NAME) break;
        if (good && !leading)
            memcpy(name.chars + at, chars, bytes);
        else if (!good)
            name.chars[at] = '?';
        if (!leading) at += takes;
        if (!good || code != ' ') kept = at;
        bytes = bytes > 0 ? bytes : 1;
        chars += bytes;
        length -= bytes;
    }
    memset(name.chars + kept, 0, sizeof name.chars - kept);
    return name;
}

bool peer_name_is_clean(const char *chars, size_t length) {
    if (length > WIRE_MAX_NAME) return false;
    struct wire_name clean = peer_name_clean(chars, length);
    return strlen(clean.chars) == length && memcmp(clean.chars, chars, length) == 0;
}

struct wire_name peer_name_of_host(void) {
    char host[HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    return peer_name_clean(host, strlen(host));
}

struct peer_label peer_label_with(const struct wire_id *id, const struct wire_name *name, const char *more) {
    const uint8_t *bytes = id->bytes;
    const char *comma = more[0] == 0 ? "" : ", ";
    char hex[9];
    struct peer_label label;
    snprintf(hex, sizeof hex, "%02x%02x%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3]);
    if (name->chars[0] != 0)
        snprintf(label.chars, sizeof label.chars, "peer %s (%s%s%.*s)", name->chars, hex, comma, PEER_LABEL_MORE - 1,
                 more);
    else if (more[0] != 0)
        snprintf(label.chars, sizeof label.chars, "peer %s (%.*s)", hex, PEER_LABEL_MORE - 1, more);
    else
        snprintf(label.chars, sizeof label.chars, "peer %s", hex);
    return label;
}

struct peer_label peer_label(const struct wire_id *id, const struct wire_name *name) {
    return peer_label_with(id, name, "");
}
