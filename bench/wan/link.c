#include "link.h"

#include <math.h>

enum { UNLIMITED_BITS = 1000000000 }; /* times 40: what an unlimited link is taken to carry when its memory is sized */

static double uniform(struct link *link) {
    uint64_t x = link->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    link->random = x;
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

/* Losses are independent, so the number of segments that pass before the next one is geometric: one logarithm per loss
 * instead of one draw per segment. */
static void draw_loss(struct link *link) {
    if (link->shape.loss <= 0) {
        link->segments_to_loss = UINT64_MAX;
    } else if (link->shape.loss >= 1) {
        link->segments_to_loss = 0;
    } else {
        link->segments_to_loss = (uint64_t)fmin(log(uniform(link)) / log1p(-link->shape.loss), 1e18);
    }
}

static void set_shape(struct link *link, const struct link_shape *shape) {
    link->shape = *shape;
    link->ns_per_byte = 0;
    if (shape->rate_bits > 0) {
        uint64_t product = (uint64_t)(shape->rate_bits / 8 * 2e-9 * (double)shape->delay_ns);
        if (link->shape.queue_bytes == 0) {
            link->shape.queue_bytes = product > LINK_QUEUE_MIN ? product : LINK_QUEUE_MIN;
        }
        link->ns_per_byte = 8e9 / shape->rate_bits;
        link->queue_ns = (uint64_t)((double)link->shape.queue_bytes * link->ns_per_byte);
    }
}

void link_init(struct link *link, const struct link_shape *shape, uint64_t seed) {
    *link = (struct link){.random = seed * 0x9e3779b97f4a7c15u | 1};
    set_shape(link, shape);
    for (int round = 0; round < 16; round++) {
        (void)uniform(link); /* neighbouring seeds begin alike */
    }
    draw_loss(link);
}

void link_reshape(struct link *link, const struct link_shape *shape) {
    set_shape(link, shape);
    draw_loss(link);
}

bool link_admit(struct link *link, uint64_t now_ns, size_t bytes, uint64_t *due_ns) {
    if (link->segments_to_loss == 0) {
        draw_loss(link);
        return false;
    }
    link->segments_to_loss--;
    uint64_t start = link->free_at_ns > now_ns ? link->free_at_ns : now_ns;
    if (link->ns_per_byte > 0 && start - now_ns > link->queue_ns) return false;
    link->free_at_ns = start + (uint64_t)((double)bytes * link->ns_per_byte);
    *due_ns = link->free_at_ns + link->shape.delay_ns;
    return true;
}

size_t link_capacity_bytes(const struct link *link) {
    double bits = link->shape.rate_bits > 0 ? link->shape.rate_bits : 40.0 * UNLIMITED_BITS;
    return (size_t)(bits / 8 * 1e-9 * (double)link->shape.delay_ns) + link->shape.queue_bytes;
}
