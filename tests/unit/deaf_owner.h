// For a test of an engine: an owner that does nothing with what the engine tells.
#ifndef PCCL_TESTS_DEAF_OWNER_H
#define PCCL_TESTS_DEAF_OWNER_H

#include "data/engine.h"

static void deaf_done(void *context, const struct wire_op_name *name) { (void)context, (void)name; }
static void deaf_mismatch(void *context, const struct wire_mismatch *mismatch) { (void)context, (void)mismatch; }
static void deaf_frozen(void *context, uint64_t epoch, const struct wire_report *report) {
    (void)context, (void)epoch, (void)report;
}
static void deaf_failed(void *context) { (void)context; }
static void deaf_link_down(void *context, const struct wire_id *id, uint32_t index, bool silent) {
    (void)context, (void)id, (void)index, (void)silent;
}

static const struct engine_callbacks deaf_owner = {.done = deaf_done,
                                                   .mismatch = deaf_mismatch,
                                                   .frozen = deaf_frozen,
                                                   .link_down = deaf_link_down,
                                                   .failed = deaf_failed};

#endif
