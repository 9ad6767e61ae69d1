/* What a TUN device with a virtio header hands over: one IP packet, or a TCP/IPv4 super-packet (GSO) of many segments
 * that the kernel has not cut yet. The emulator decides the fate of every segment, and passes on what is left in as few
 * pieces as can be. */
#ifndef LONGLINK_PACKET_H
#define LONGLINK_PACKET_H

#include <stddef.h>
#include <stdint.h>

enum { PACKET_MAX = 69632 /* a virtio header and the largest IP packet, with room */ };

struct packet {
    const uint8_t *bytes; /* borrowed: virtio header, IP header, ... */
    size_t length;
    size_t headers;      /* IP and TCP headers together; 0 unless it is a super-packet */
    size_t segment_size; /* payload bytes of a full segment, if it is one */
    unsigned segments;   /* at least 1 */
};

/* Looks at `length` bytes read from the device. Whatever is no sound super-packet counts as one segment. */
struct packet packet_parse(const uint8_t *bytes, size_t length);

/* Bytes that segment `index` has on the wire, its headers included. */
size_t packet_wire_bytes(const struct packet *packet, unsigned index);

/* Writes segments `first` to `end` - 1 to `out` (PACKET_MAX bytes) as one packet for the other device; gives its
 * length. */
size_t packet_cut(const struct packet *packet, unsigned first, unsigned end, uint8_t *out);

#endif
