#include "peer/measurement.h"

#include "base/platform.h"

enum { SAMPLE_NS = 4000000 }; // between two samples, at least

void measurement_add(struct measurement *m, uint64_t bytes, int64_t now_ns) {
    m->bytes += bytes;
    m->last = now_ns;
    bool due = m->count == 0 || m->last - m->samples[m->count - 1].at >= SAMPLE_NS;
    if (due && m->count < MEASUREMENT_SAMPLES)
        m->samples[m->count++] = (struct sample){.at = m->last, .bytes = m->bytes};
}

uint64_t measurement_rate(const struct measurement *m) {
    if (m->count == 0) return 0;
    int64_t begin = m->samples[0].at + (m->last - m->samples[0].at) / 3;
    struct sample from = m->samples[0];
    for (uint32_t i = 1; i < m->count && m->samples[i].at <= begin; i++) from = m->samples[i];
    if (m->last - from.at < SAMPLE_NS) from = (struct sample){.at = m->samples[0].at}; // all came in one go
    int64_t span = m->last - from.at > MS_NS ? m->last - from.at : MS_NS;
    return (uint64_t)((double)(m->bytes - from.bytes) * 1e9 / (double)span);
}
