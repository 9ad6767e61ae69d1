// For a test of an engine: an owner that does nothing with what the engine tells.
#ifndef PCCL_TESTS_DEAF_OWNER_H
#define PCCL_TESTS_DEAF_OWNER_H

#include "data/engine.h"

static void deaf_master(void *context, const struct wire_buffer *frames) { (void)context, (void)frames; }
static void deaf_failed(void *context, const char *why) { (void)context, (void)why; }
static void deaf_link_down(void *context, const struct wire_id *id, uint32_t index, uint64_t serial,
                           enum wire_link_reason reason) {
    (void)context, (void)id, (void)index, (void)serial, (void)reason;
}

static const struct engine_callbacks deaf_owner = {
    .to_master = deaf_master, .link_down = deaf_link_down, .failed = deaf_failed};

#endif
