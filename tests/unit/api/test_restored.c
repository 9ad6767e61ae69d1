// A state that a failed sync left torn loses each election, until the program says that it has restored it.
#include "run.h"
#include "state/content.h"

enum { COUNT = 1000 };

static float values[2][COUNT];
static uint64_t revisions[2];

static void fill(size_t rank) {
    for (size_t i = 0; i < COUNT; i++) values[rank][i] = (float)(rank + 1);
    revisions[rank] = rank == 0 ? 3 : 7;
}

static void sync_work(struct run *run, size_t rank) {
    pcclTensorInfo_t info = {.name = "w", .data = values[rank], .count = COUNT, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = revisions[rank], .count = 1, .infos = &info};
    CHECK_EQ(
        pcclSynchronizeSharedState(run->comms[rank], &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL),
        pcclSuccess);
    revisions[rank] = state.revision;
}

static void try_one(bool restored) {
    struct run run;
    struct delta_entry torn = {.data = values[1], .bytes = sizeof values[1] / 2};
    pcclTensorInfo_t info = {.name = "other name", .data = values[1], .count = COUNT, .datatype = pcclFloat};
    pcclSharedState_t state = {.count = 1, .infos = &info};
    fill(0);
    fill(1);
    content_mark_torn(&(struct delta_layout){.entries = &torn, .count = 1});
    if (restored) CHECK_EQ(pcclMarkSharedStateRestored(&state), pcclSuccess);
    start_run(&run, 2);
    on_all(&run, restored ? "a state that was restored" : "a torn state", sync_work);
    for (size_t rank = 0; rank < 2; rank++) {
        CHECK_EQ(revisions[rank], restored ? 7 : 3);
        CHECK(values[rank][0] == (restored ? 2 : 1) && values[rank][COUNT - 1] == (restored ? 2 : 1));
    }
    end_run(&run);
}

int main(void) {
    REQUIRE(pcclInit() == pcclSuccess);
    CHECK_EQ(pcclMarkSharedStateRestored(NULL), pcclInvalidArgument);
    CHECK_EQ(pcclMarkSharedStateRestored(&(pcclSharedState_t){.count = 0}), pcclInvalidArgument);
    try_one(false);
    try_one(true);
    return check_status();
}
