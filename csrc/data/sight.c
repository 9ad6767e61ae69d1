#include "data/sight.h"

#include <stdlib.h>

#include "base/platform.h"

bool sights_posted(struct sights *sights) { return !atomic_exchange(&sights->awake, true); }

void sights_ended(struct sights *sights, int64_t posted_ns, int64_t now_ns) {
    sights->ops++;
    if (posted_ns != 0 && now_ns > posted_ns) sights->op_us += (uint64_t)((now_ns - posted_ns) / US_NS);
    sights_moved(sights);
}

void sight_entered(struct sight *sight, int64_t begun_ns, int64_t heard_ns) {
    if (begun_ns == 0 || heard_ns == 0) return;
    sight->entries++;
    if (heard_ns > begun_ns)
        sight->late_ns += (uint64_t)(heard_ns - begun_ns);
    else
        sight->early_ns += (uint64_t)(begun_ns - heard_ns);
}

void sight_beat(struct sight *sight, uint64_t sent_us, bool loaded, int64_t now_ns) {
    int64_t travel_us = (int64_t)((uint64_t)(now_ns / US_NS) - sent_us);
    if (sent_us == 0) return;
    if (sight->least_at == 0 || now_ns - sight->least_at > SIGHT_BASE_MS * MS_NS) {
        sight->least_us[1] = sight->least_at == 0 ? travel_us : sight->least_us[0];
        sight->least_us[0] = travel_us;
        sight->least_at = now_ns;
    }
    if (travel_us < sight->least_us[0]) sight->least_us[0] = travel_us;
    if (loaded) sight->travel_us[sight->beats++ % SIGHT_BEATS] = travel_us;
}

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

uint64_t sight_queue_us(struct sight *sight) {
    size_t count = sight->beats < SIGHT_BEATS ? sight->beats : SIGHT_BEATS;
    sight->beats = 0;
    if (count == 0) return 0;
    int64_t least = platform_earlier(sight->least_us[0], sight->least_us[1]);
    qsort(sight->travel_us, count, sizeof *sight->travel_us, by_number);
    int64_t middle = sight->travel_us[(count - 1) / 2];
    // The other side may say anything.
    return middle <= least ? 0 : (uint64_t)middle - (uint64_t)least;
}
