#define _GNU_SOURCE
#include "net/cards.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>

#include "net/socket.h"

static const char none[] = "none";

// Whether this is an address to be dialled: no multicast or broadcast one, and no link-local one, which needs a scope
// that it cannot carry to another host.
static bool is_usable(const struct wire_address *address) {
    const uint8_t *bytes = address->bytes;
    if (socket_address_is_any(address)) return false;
    if (address->family == 4) return bytes[0] < 224;
    return bytes[0] != 0xff && (bytes[0] != 0xfe || (bytes[1] & 0xc0) != 0x80);
}

// Finds the address of an interface: its first of IPv4, or else of IPv6.
static bool find_address(const struct ifaddrs *all, const char *device, struct wire_address *out) {
    out->family = 0;
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        struct wire_address found;
        if (at->ifa_addr == NULL || strcmp(at->ifa_name, device) != 0) continue;
        if (!socket_address_from_sockaddr(&found, at->ifa_addr) || !is_usable(&found)) continue;
        if (out->family == 0 || (out->family == 6 && found.family == 4)) *out = found;
    }
    return out->family != 0;
}

// Finds the interface that has an address. False: none of this host has.
static bool find_device(const struct ifaddrs *all, const struct wire_address *address, char device[IF_NAMESIZE]) {
    device[0] = 0;
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        struct wire_address found;
        if (at->ifa_addr == NULL || !socket_address_from_sockaddr(&found, at->ifa_addr)) continue;
        if (!socket_address_same_host(&found, address)) continue;
        snprintf(device, IF_NAMESIZE, "%s", at->ifa_name);
        return true;
    }
    return socket_address_is_loopback(address); // all of 127.0.0.0/8
}

// Reads an address with or without a port. One of IPv6 may be in brackets.
static bool parse(const char *text, struct wire_address *out) {
    char with_port[96];
    *out = (struct wire_address){.family = 6};
    if (inet_pton(AF_INET6, text, out->bytes) == 1) return true;
    if (socket_address_parse(text, strlen(text), out)) return true;
    snprintf(with_port, sizeof with_port, "%.90s:1", text);
    bool good = socket_address_parse(with_port, strlen(with_port), out);
    out->port = 0;
    return good;
}

// Lists the interfaces that may be named.
static void list_interfaces(const struct ifaddrs *all, char *out, size_t capacity) {
    struct wire_address address;
    size_t at = 0;
    out[0] = 0;
    for (const struct ifaddrs *one = all; one != NULL && at + IF_NAMESIZE + 2 < capacity; one = one->ifa_next)
        if (one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_PACKET &&
            find_address(all, one->ifa_name, &address))
            at += (size_t)snprintf(out + at, capacity - at, "%s%s", at > 0 ? ", " : "", one->ifa_name);
}

static bool is_announced(const struct wire_reach *reach, const struct wire_address *address) {
    for (uint32_t i = 0; i < reach->count; i++)
        if (socket_address_equal(&reach->addresses[i], address)) return true;
    return false;
}

static bool has(const struct cards *cards, const struct wire_address *address) {
    for (uint32_t i = 0; i < cards->count; i++)
        if (socket_address_same_host(&cards->list[i].address, address)) return true;
    return false;
}

static void add_card(struct cards *out, const struct wire_address *address, const char *device) {
    if (has(out, address)) return;
    struct card *card = &out->list[out->count++];
    card->address = *address;
    card->address.port = 0;
    snprintf(card->device, sizeof card->device, "%.*s", IF_NAMESIZE - 1, device);
}

static bool take_interface(struct cards *out, const struct ifaddrs *all, const char *name, char *why) {
    struct wire_address address;
    char names[CARDS_WHY_BYTES / 2];
    if (out->count == WIRE_MAX_ADDRESSES) {
        snprintf(why, CARDS_WHY_BYTES, "more than %d interfaces are named", WIRE_MAX_ADDRESSES);
        return false;
    }
    if (!find_address(all, name, &address)) {
        list_interfaces(all, names, sizeof names);
        snprintf(
            why, CARDS_WHY_BYTES,
            "interface %.32s does not exist or has no address; this host has %s: pass one of them as interface, or in "
            "PCCL_INTERFACE",
            name, names);
        return false;
    }
    add_card(out, &address, name);
    return true;
}

static bool take_address(struct cards *out, const struct ifaddrs *all, const char *text, char *why) {
    struct wire_address address;
    (void)all;
    if (!parse(text, &address) || !is_usable(&address)) {
        snprintf(why, CARDS_WHY_BYTES,
                 "PCCL_ADDRESS: %.64s is not an address that others can dial; give numbers such as 10.0.1.5 or "
                 "203.0.113.7:48149, or none",
                 text);
        return false;
    }
    if (is_announced(&out->reach, &address)) return true;
    if (out->reach.count == WIRE_MAX_ADDRESSES) {
        snprintf(why, CARDS_WHY_BYTES, "PCCL_ADDRESS has more than %d addresses", WIRE_MAX_ADDRESSES);
        return false;
    }
    out->reach.addresses[out->reach.count++] = address;
    return true;
}

typedef bool take_fn(struct cards *out, const struct ifaddrs *all, const char *text, char *why);

// Takes the items of a list between commas, without the spaces around them.
static bool each(struct cards *out, const struct ifaddrs *all, const char *list, take_fn *take, char *why) {
    list += strspn(list, " ");
    while (*list != 0) {
        char item[80];
        size_t length = strcspn(list, ","), kept = length;
        while (kept > 0 && list[kept - 1] == ' ') kept--;
        snprintf(item, sizeof item, "%.*s", (int)kept, list);
        if (!take(out, all, item, why)) return false;
        list += length + (list[length] == ',');
        list += strspn(list, " ");
    }
    return true;
}

bool cards_read(struct cards *out, const char *interfaces, const char *addresses, char why[CARDS_WHY_BYTES]) {
    struct ifaddrs *all = NULL;
    char device[IF_NAMESIZE];
    *out = (struct cards){0};
    why[0] = 0;
    bool named = interfaces != NULL && *interfaces != 0;
    if (addresses == NULL) addresses = "";
    if (!named && *addresses == 0) return true;
    bool listed = getifaddrs(&all) == 0;
    if (named && !listed) {
        snprintf(why, CARDS_WHY_BYTES, "the system does not list its interfaces: %s", strerror(errno));
        return false;
    }
    bool good = !named || each(out, all, interfaces, take_interface, why);
    out->reach.closed = strcmp(addresses, none) == 0;
    if (good && !out->reach.closed) good = each(out, all, addresses, take_address, why);
    for (uint32_t i = 0; good && !named && i < out->reach.count; i++)
        if (find_device(all, &out->reach.addresses[i], device)) add_card(out, &out->reach.addresses[i], device);
    for (uint32_t i = 0; good && !out->reach.closed && *addresses == 0 && i < out->count; i++)
        out->reach.addresses[out->reach.count++] = out->list[i].address;
    if (listed) freeifaddrs(all);
    return good;
}
