// Telemetry: how this member sees its ops and the other members (link/stats). The master is told about once a second
// while ops are called, for whoever asks why they are slow (docs/diagnosis.md), and a program when it asks.
#ifndef PCCL_DATA_TELEMETRY_H
#define PCCL_DATA_TELEMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/link_report.h"

struct engine;

// Does what is due. In how many milliseconds to step again at the latest: no later than in `timeout_ms`, -1: never.
// Nothing of an op waits for it. Thread.
int telemetry_step(struct engine *engine, int timeout_ms);

// Reports on each other member of the own group in the latest epoch that the engine knows, in ring order. Writes up to
// `capacity` reports and returns how many there are. Any thread: takes the engine's lock for a moment for each member,
// and never while it asks the kernel.
size_t telemetry_report_links(struct engine *engine, struct link_report *out, size_t capacity);

#endif
