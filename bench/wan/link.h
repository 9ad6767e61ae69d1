/* The physics of one direction of a link: rate, delay, loss and a queue that overflows. Pure: time is given, nothing
 * waits.
 *
 * Every segment (a packet of at most one MTU) is lost with a fixed probability, else dropped if the queue before the
 * link is full, else put on the wire behind its predecessors at the link's rate and delivered one delay after its last
 * byte. */
#ifndef LONGLINK_LINK_H
#define LONGLINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct link_shape {
    double rate_bits;     /* per second; 0 = no limit */
    uint64_t delay_ns;    /* one way */
    double loss;          /* probability per segment, 0 to 1 */
    uint64_t queue_bytes; /* 0 = one bandwidth-delay product of the round trip, at least LINK_QUEUE_MIN */
};

enum { LINK_QUEUE_MIN = 200000 };

struct link {
    struct link_shape shape;
    double ns_per_byte;
    uint64_t queue_ns;   /* a full queue's time on the wire */
    uint64_t free_at_ns; /* when the wire has sent everything admitted so far */
    uint64_t random;     /* state of the generator, never 0 */
    uint64_t segments_to_loss;
};

void link_init(struct link *link, const struct link_shape *shape, uint64_t seed);

/* What is offered from now on finds a link of that shape, behind what is on the wire already. */
void link_reshape(struct link *link, const struct link_shape *shape);

/* Offers a segment of that many bytes. True: it arrives at *due_ns, which never falls. False: it is gone. */
bool link_admit(struct link *link, uint64_t now_ns, size_t bytes, uint64_t *due_ns);

/* The most bytes that can be under way or queued at once. */
size_t link_capacity_bytes(const struct link *link);

#endif
