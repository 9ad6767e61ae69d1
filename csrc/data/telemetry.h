// Tells the master what this member sees (link/stats), about once a second while ops are called, for whoever asks why
// they are slow (docs/diagnosis.md). The engine's thread does it; nothing of an op waits for it.
#ifndef PCCL_DATA_TELEMETRY_H
#define PCCL_DATA_TELEMETRY_H

struct engine;

enum {
    TELEMETRY_TELL_MS = 1000, // between two reports; less where the heartbeat limit is short
    TELEMETRY_LOOK_MS = 100,  // between two looks at the links while a large op runs
    TELEMETRY_BEAT_MS = 20,   // between two heartbeats to a far member meanwhile; to a near one, one at every look
    TELEMETRY_KEEP_MS = 1000, // for so long after a large op, the windows of its lanes are kept
    TELEMETRY_RATE_MS = 250,  // of ops, for the rate of a link; of a pause that spoils it
    TELEMETRY_BEAT_PEERS = 8, // who gets heartbeats: the neighbours in the ring, and those that follow
};

// Does what is due. In how many milliseconds to step again at the latest: no later than in `timeout_ms`, -1: never.
// Thread.
int telemetry_step(struct engine *engine, int timeout_ms);

#endif
