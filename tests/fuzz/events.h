// What happens in the targets that read programs, as the first byte of each step; make_corpus writes programs of these.
#ifndef PCCL_TESTS_FUZZ_EVENTS_H
#define PCCL_TESTS_FUZZ_EVENTS_H

// ---- fuzz_core: what follows is said at the event ----
enum master_event {
    M_CONNECT,     // connection, how (group, lanes, id), odd
    M_LOST,        // connection
    M_LEAVE,       // connection
    M_WAIT,        // 8 ms each
    M_DUE,         // until the next deadline
    M_HEARTBEATS,  // of all
    M_LINKED,      // connection, who is unreachable (bits), how
    M_ALL_LINKED,  // everybody who was asked; nobody is unreachable
    M_LINKS_READY, // connection: LINKED(0)
    M_ALL_READY,
    M_VOTE,         // connection, kind
    M_ALL_VOTE,     // kind
    M_DONE,         // connection, op
    M_ALL_DONE,     // op
    M_REPORT,       // connection, count, (op, state) each
    M_ALL_REPORT,   // likewise, the same of all
    M_MISMATCH,     // connection, other, op, arguments
    M_LINK_DOWN,    // connection, other, index
    M_MEASURED,     // connection, other, rate
    M_ALL_MEASURED, // rate
    M_SYNC_VOTE,    // connection, how, revision, content
    M_ALL_SYNC_VOTE,
    M_SYNC_DONE, // connection, how, other, bytes
    M_ALL_SYNC_DONE,
    M_RAW,        // connection, type, header, length, bytes
    M_REFUSE,     // how many allocations until one is refused
    M_RANDOM,     // a new run id and secret are given
    M_MASTER,     // how: the master is lost, the next one expects survivors, or is a standby
    M_RESUME,     // connection, how, lie, what instead
    M_ALL_RESUME, // how
    M_PROMISE,    // connection
    M_ALL_PROMISE,
    M_MOVED, // connection
    M_EVENTS,
};

// ---- fuzz_member ----
enum peer_event {
    P_JOIN,
    P_DISCONNECTED,
    P_WAIT,      // 8 ms each
    P_DUE,       // until the next deadline
    P_WELCOME,   // join number
    P_END,       // how: REFUSED or EXPELLED
    P_CANDIDATE, // members (bits), rotation, how
    P_EPOCH,     // reason, members, rotation, how
    P_OUTCOME,   // kind, code, value
    P_VERDICT,   // op, kind, supplier, needy
    P_MEASURE,   // other
    P_SYNC_PLAN, // how
    P_SYNC_END,  // code, revision
    P_HEARTBEAT,
    P_RAW,     // type, header, length, bytes
    P_HELLO,   // other, index, how: an incoming link is judged, and comes up if it is accepted
    P_DIALLED, // how: what was dialled first comes up, or fails
    P_ALL_DIALLED,
    P_LINK_UP,   // other, index: unasked
    P_LINK_LOST, // other, index, and in its highest bit: by silence
    P_MEASURED,  // other, rate
    P_VOTE,      // kind
    P_SYNC,      // how
    P_LEAVE,
    P_ADOPT,      // the newest view
    P_ADOPT_LOSS, // group epoch
    P_REFUSE,     // how many allocations until one is refused
    P_RECOVERY,   // how long a lost master is waited for, 64 ms each; how many there are
    P_RESUME,     // how: what the tensors hold
    P_GENERATION, // by how much it grows
    P_RESUMED,    // how, kind, code, round
    P_WAITING,
    P_BYE,
    P_ROUND_TRIP,   // ms
    P_SYNC_DIFFERS, // first, how many more
    P_EVENTS,
};

// ---- fuzz_engine and fuzz_sync ----
enum { NEXT_AT_ONCE = 0x80 }; // beside an event: the engine has no turn before the next one

// Links are peer - 1 + 2 * index.
enum engine_event {
    E_POST,    // tag, how (in place, retry, tell, quantised, size, error feedback), what (operation, quantisation)
    E_TAKE,    // tag
    E_VERDICT, // tag, kind, how
    E_FRAME,   // link, type, tag, where (shard, hop, segment), how (and what that asks for)
    E_RAW,     // link, length, bytes
    E_ENTER,   // how (members, rank, lost, speed, not adopted)
    E_READY,
    E_LINK, // link
    E_LINK_ALL,
    E_CLOSE, // link
    E_DROP,  // peer - 1
    E_WAIT,  // 10 ms each
    E_WATCH, // for silence
    E_SETTLE,
    E_KILL,
    E_REFUSE,  // how many allocations until one is refused
    E_WEIGHTS, // weights, sites: of the members of epochs from now on, two bits each
    E_EVENTS,
};

// At the beginning of a program: the sizes of the entries (two bytes), and which leaves differ (bits).
enum sync_event {
    S_BEGIN,
    S_PLAN,       // how (receives, donors, of something else)
    S_HASHES,     // link, -, how (and what that asks for)
    S_LEAF,       // link, leaf, how (coding)
    S_ASK,        // link, leaves, how (codings)
    S_ASK_HASHES, // link, leaves, how
    S_ENTER,      // members
    S_LINK,       // link
    S_CLOSE,      // link
    S_WAIT,       // 10 ms each
    S_END,
    S_RESTART,
    S_REFUSE, // how many allocations until one is refused, of those of the event that follows
    S_EVENTS,
};

// ---- fuzz_wireup: an end is one of those who came or were dialled, counted from 0 ----
enum link_step {
    L_COME,
    L_HELLO,   // end, how (kind, from, index; with a wrong byte; cut)
    L_ACK,     // end, how (with a wrong byte; cut)
    L_RAW,     // end, length, bytes
    L_HANG_UP, // end
    L_JUDGE,   // judgement of hellos from now on
    L_RECHECK,
    L_DIAL,   // how (peer, refused, index)
    L_PROBE,  // how, duration
    L_CANCEL, // peer
    L_WAIT,   // 100 ms each
    L_DUE,    // until the next deadline
    L_TAKE,   // the events
    L_SYSTEM, // which error the system has next
    L_REFUSE, // how many allocations until one is refused
    L_IDENTIFY,
    L_EVENTS,
};

#endif
