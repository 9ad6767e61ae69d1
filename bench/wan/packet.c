#include "packet.h"

#include <linux/virtio_net.h>
#include <string.h>

enum {
    VIRTIO = sizeof(struct virtio_net_hdr),
    IP_MIN = 20,
    IP_LENGTH = 2,
    IP_ID = 4,
    IP_CHECKSUM = 10,
    IP_ADDRESSES = 12,
    IP_PROTOCOL = 9,
    TCP_MIN = 20,
    TCP_SEQUENCE = 4,
    TCP_OFFSET = 12,
    TCP_FLAGS = 13,
    TCP_CHECKSUM = 16,
    FLAG_FIN = 0x01,
    FLAG_PSH = 0x08,
    FLAG_CWR = 0x80,
};

static uint32_t get16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static void put16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static uint32_t get32(const uint8_t *at) { return get16(at) << 16 | get16(at + 2); }

static void put32(uint8_t *at, uint32_t value) {
    put16(at, value >> 16);
    put16(at + 2, value);
}

static uint32_t sum16(const uint8_t *at, size_t length, uint32_t sum) {
    for (size_t i = 0; i + 1 < length; i += 2) {
        sum += get16(at + i);
    }
    return sum;
}

static uint32_t fold(uint32_t sum) {
    while (sum >> 16) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return sum;
}

struct packet packet_parse(const uint8_t *bytes, size_t length) {
    struct packet packet = {.bytes = bytes, .length = length, .segments = 1};
    struct virtio_net_hdr virtio;
    if (length < VIRTIO + IP_MIN + TCP_MIN) {
        return packet;
    }
    memcpy(&virtio, bytes, sizeof virtio);
    if ((virtio.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4 || virtio.gso_size == 0) {
        return packet;
    }
    const uint8_t *ip = bytes + VIRTIO;
    size_t ip_header = (size_t)(ip[0] & 15) * 4;
    if (ip_header < IP_MIN || VIRTIO + ip_header + TCP_MIN > length) {
        return packet;
    }
    size_t headers = ip_header + (size_t)(ip[ip_header + TCP_OFFSET] >> 4) * 4;
    if (headers < ip_header + TCP_MIN || VIRTIO + headers >= length) {
        return packet;
    }
    packet.headers = headers;
    packet.segment_size = virtio.gso_size;
    packet.segments = (unsigned)((length - VIRTIO - headers + virtio.gso_size - 1) / virtio.gso_size);
    return packet;
}

static size_t payload_end(const struct packet *packet, unsigned end) {
    return end == packet->segments ? packet->length - VIRTIO - packet->headers : end * packet->segment_size;
}

size_t packet_wire_bytes(const struct packet *packet, unsigned index) {
    if (packet->headers == 0) {
        return packet->length - VIRTIO;
    }
    return packet->headers + payload_end(packet, index + 1) - index * packet->segment_size;
}

size_t packet_cut(const struct packet *packet, unsigned first, unsigned end, uint8_t *out) {
    if (first == 0 && end == packet->segments) {
        memcpy(out, packet->bytes, packet->length);
        return packet->length;
    }
    size_t from = first * packet->segment_size;
    size_t payload = payload_end(packet, end) - from;
    memcpy(out, packet->bytes, VIRTIO + packet->headers);
    memcpy(out + VIRTIO + packet->headers, packet->bytes + VIRTIO + packet->headers + from, payload);

    uint8_t *ip = out + VIRTIO;
    size_t ip_header = (size_t)(ip[0] & 15) * 4;
    put16(ip + IP_LENGTH, (uint32_t)(packet->headers + payload));
    put16(ip + IP_ID, get16(ip + IP_ID) + first);
    put16(ip + IP_CHECKSUM, 0);
    put16(ip + IP_CHECKSUM, ~fold(sum16(ip, ip_header, 0)) & 0xffff);

    uint8_t *tcp = ip + ip_header;
    size_t tcp_length = packet->headers - ip_header + payload;
    put32(tcp + TCP_SEQUENCE, get32(tcp + TCP_SEQUENCE) + (uint32_t)from);
    if (first > 0) {
        tcp[TCP_FLAGS] &= (uint8_t)~FLAG_CWR;
    }
    if (end < packet->segments) {
        tcp[TCP_FLAGS] &= (uint8_t)~(FLAG_FIN | FLAG_PSH);
    }
    /* The receiving kernel completes the checksum: the field holds the sum of the pseudo-header alone. */
    put16(tcp + TCP_CHECKSUM, fold(sum16(ip + IP_ADDRESSES, 8, ip[IP_PROTOCOL] + (uint32_t)tcp_length)));

    struct virtio_net_hdr virtio;
    memcpy(&virtio, out, sizeof virtio);
    virtio.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    virtio.hdr_len = (uint16_t)packet->headers;
    virtio.csum_start = (uint16_t)ip_header;
    virtio.csum_offset = TCP_CHECKSUM;
    if (end - first == 1) {
        virtio.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        virtio.gso_size = 0;
    }
    memcpy(out, &virtio, sizeof virtio);
    return VIRTIO + packet->headers + payload;
}
