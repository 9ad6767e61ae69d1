// Which cards dial which addresses, and in which order.
#include "peer/routes.h"

#include "base/platform.h"
#include "check.h"

static struct wire_address address_of(uint8_t network, uint8_t host) {
    return (struct wire_address){.family = 4, .bytes = {10, 0, network, host}, .port = 5};
}

static struct routes routes_of(uint32_t cards) {
    struct routes routes = {.cards.count = cards};
    for (uint32_t i = 0; i < cards; i++) routes.cards.list[i].address = address_of((uint8_t)i, 1);
    return routes;
}

static struct wire_reach reach_of(uint32_t count) {
    struct wire_reach reach = {.count = (uint8_t)count};
    for (uint32_t i = 0; i < count; i++) reach.addresses[i] = address_of((uint8_t)i, 2);
    return reach;
}

// The next pair as a number of two digits, card and address; 90: the system's card; 99: none is left.
static uint32_t next(const struct routes *routes, const struct wire_reach *reach, uint32_t index, uint32_t *tried,
                     int64_t now) {
    struct route route;
    if (!routes_next(routes, reach, index, tried, now, &route)) return 99;
    return (route.card == NULL ? 90 : 10U * route.card->address.bytes[2]) + route.to->bytes[2];
}

static void test_order(void) {
    struct routes two = routes_of(2), one = routes_of(1), none = routes_of(0);
    struct wire_reach twice = reach_of(2), once = reach_of(1), four = reach_of(4);
    uint32_t tried = 0;
    check_case("links are spread over cards in the same places");
    for (uint32_t index = 0; index < 6; index++) {
        tried = 0;
        CHECK_EQ(next(&two, &twice, index, &tried, 1), index % 2 * 11);
    }
    check_case("then the other cards in the same places, then all");
    tried = 0;
    static const uint32_t want[] = {11, 0, 1, 10, 99};
    for (uint32_t i = 0; i < 5; i++) {
        CHECK_EQ(next(&two, &twice, 3, &tried, 1), want[i]);
        CHECK_EQ(routes_left(&two, &twice, tried), i < 4 ? 3 - i : 0);
    }
    check_case("other numbers of cards");
    tried = 0;
    CHECK_EQ(next(&none, &once, 7, &tried, 1), 90);
    CHECK_EQ(next(&none, &once, 7, &tried, 1), 99);
    for (uint32_t index = 0; index < 4; index++) {
        tried = 0;
        CHECK_EQ(next(&two, &four, index, &tried, 1), index % 2 * 10 + index);
    }
    tried = 0;
    for (uint32_t i = 0; i < 8; i++) CHECK(next(&two, &four, 1, &tried, 1) < 99);
    CHECK_EQ(next(&two, &four, 1, &tried, 1), 99);
    tried = 0;
    CHECK_EQ(next(&one, &twice, 1, &tried, 1), 1);
    CHECK_EQ(next(&two, &(struct wire_reach){0}, 0, &tried, 1), 99);
}

static void test_avoided(void) {
    struct routes routes = routes_of(2);
    struct wire_reach reach = reach_of(2);
    int64_t now = SECOND_NS, later = now + ROUTES_AVOID_MS * MS_NS;
    struct wire_address elsewhere = address_of(1, 3);
    routes_avoid(&routes, &routes.cards.list[1].address, &reach.addresses[1], now);
    routes_avoid(&routes, &routes.cards.list[0].address, &elsewhere, now);
    uint32_t tried = 0;
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 0);
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 1);
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 10);
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 11); // at last
    tried = 0;
    CHECK_EQ(next(&routes, &reach, 1, &tried, later), 11);
    check_case("of two that have failed, the one that did so before comes first");
    routes_avoid(&routes, &routes.cards.list[0].address, &reach.addresses[0], now - 1);
    routes_avoid(&routes, &routes.cards.list[0].address, &reach.addresses[1], now);
    routes_avoid(&routes, &routes.cards.list[1].address, &reach.addresses[0], now);
    tried = 0;
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 0);
    check_case("the oldest are forgotten");
    for (uint32_t i = 0; i < ROUTES_AVOIDED; i++) routes_avoid(&routes, NULL, &elsewhere, now);
    tried = 0;
    CHECK_EQ(next(&routes, &reach, 1, &tried, now), 11);
}

int main(void) {
    test_order();
    test_avoided();
    return check_status();
}
