// Pairs of doubles: about 106 bits, value = head + tail with |tail| at most half a last place of head (Knuth's two-sum,
// Dekker 1971). Exact only while nothing overflows or becomes denormal, and without contraction to fused operations.
#ifndef PCCL_COMPUTE_DOUBLE_PAIR_H
#define PCCL_COMPUTE_DOUBLE_PAIR_H

struct pair {
    double head, tail;
};

static inline struct pair pair_sum(double a, double b) {
    double sum = a + b, of_b = sum - a;
    return (struct pair){sum, (a - (sum - of_b)) + (b - of_b)};
}

static inline struct pair pair_split(double a) {
    double scaled = a * 134217729.0, high = scaled - (scaled - a); // 2^27 + 1
    return (struct pair){high, a - high};
}

static inline struct pair pair_product(double a, double b) {
    struct pair x = pair_split(a), y = pair_split(b);
    double product = a * b;
    return (struct pair){product, ((x.head * y.head - product) + x.head * y.tail + x.tail * y.head) + x.tail * y.tail};
}

static inline struct pair pair_add(struct pair a, struct pair b) {
    struct pair sum = pair_sum(a.head, b.head);
    return pair_sum(sum.head, sum.tail + (a.tail + b.tail));
}

static inline struct pair pair_times(struct pair a, struct pair b) {
    struct pair product = pair_product(a.head, b.head);
    return pair_sum(product.head, product.tail + (a.head * b.tail + a.tail * b.head));
}

static inline struct pair pair_over(struct pair a, struct pair b) {
    double first = a.head / b.head;
    struct pair by_first = pair_times((struct pair){first, 0}, b);
    struct pair rest = pair_add(a, (struct pair){-by_first.head, -by_first.tail});
    return pair_sum(first, rest.head / b.head);
}

#endif
