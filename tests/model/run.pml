/* A run of three peers with one large op, one peer that may crash at any moment, and the loss of the master at any moment: it crashes, or it is
 * silent for a while, is left by some peers and goes on. Two fresh masters may take over (the one that is started again, and a standby); each
 * peer goes to either. docs/protocol.md says what this covers and what not; run.sh checks it and the mutations, which have to fail:
 *
 *   NO_FENCING    a master does not heed that its peers have gone to one of a higher generation
 *   EARLY_COMMIT  COMMIT when the first member is done
 *   HALF_QUORUM   half of the last epoch is enough to take over
 *   NO_HISTORY    peers do not tell a new master which verdicts they have
 *   SHORT_HISTORY they tell it in the first report of a generation only, though another loss may void that report
 *
 * Claims, as assertions:
 *   agreement     no peer gets COMMIT and another one ABORT for the op
 *   completeness  who gets COMMIT has completed the op
 *   one epoch     no two masters make an epoch of the same generation and number
 *   progress      when nothing can happen any more, the op has ended on every living peer, or the peer was expelled
 */
#define N 3
#define ALL 7
#define NOBODY 9 /* no peer */
#define has(mask, p) (((mask) >> (p)) & 1)
#define bit(p) (1 << (p))
#define size(mask) (has(mask, 0) + has(mask, 1) + has(mask, 2))

/* an op at a peer */
#define OPEN 0
#define DONE 1
#define COMMITTED 2
#define ABORTED 3
#define UNKNOWN 4 /* in a report: no op, or no word of one that has ended */
#define REDONE 5  /* as a verdict only */

/* a master */
#define GATHERING 0
#define ACTIVE 1
#define OVER 2 /* crashed, or deposed */

mtype = {m_done, m_report, m_moved, m_gone, m_epoch, m_verdict, m_expelled};

chan up[6] = [6] of { mtype, byte, byte, byte };         /* p: to the first master; N + p: to the one that took over */
chan down[N] = [6] of { mtype, byte, byte, byte, byte }; /* from the master that the peer is with */

/* peers */
bool dead[N], expelled[N], frozen[N];
byte op[N], name[N], generation[N], number[N], members[N], lost[N], with[N];
bool crashed_one;

/* masters */
byte mode[3], m_generation[3], m_number[3], m_members[3], m_lost[3], present[3], done[3], reported[3];
byte r_name[9], r_state[9]; /* by master and peer */
bool made[32];              /* by generation and number */

#define live(p) (op[p] == OPEN || op[p] == DONE)
#define to_master(p) up[((with[p] == 0) -> (p) : (N + (p)))]

inline say(to, type, one, two, three, four) {
    assert(nfull(down[to]));
    down[to]!type(one, two, three, four)
}

/* ---- masters ---- */

inline tell_epoch(m) {
    assert(!made[m_generation[m] * 8 + m_number[m]]); /* one epoch */
    made[m_generation[m] * 8 + m_number[m]] = true;
    done[m] = 0;
    reported[m] = 0;
    i = 0;
    do
    :: i < N ->
        r_name[m * N + i] = 0;
        r_state[m * N + i] = UNKNOWN;
        if
        :: has(m_members[m], i) && with[i] == m -> say(i, m_epoch, m_generation[m], m_number[m], m_members[m], m_lost[m])
        :: else
        fi;
        i++
    :: else -> break
    od
}

inline lose(m, p) {
    m_members[m] = m_members[m] & ~bit(p);
    if
    :: m_members[m] != 0 ->
        m_number[m]++;
        m_lost[m] = m_number[m];
        tell_epoch(m)
    :: else -> mode[m] = OVER
    fi
}

/* To everybody whose report names the op so; `kind` is the verdict. */
inline tell_verdict(m, nm, kind) {
    k = 0;
    do
    :: k < N ->
        if
        :: has(m_members[m], k) && with[k] == m && r_name[m * N + k] == nm && (r_state[m * N + k] == OPEN || r_state[m * N + k] == DONE) ->
            say(k, m_verdict, m_generation[m], nm, kind, 0)
        :: else
        fi;
        k++
    :: else -> break
    od
}

/* All have reported. The op may have two names: where some heard REDO and others did not. */
inline judge(m) {
    i = 0;
    do
    :: i < 8 ->
        finished = 0; have = 0; verdict = UNKNOWN;
        j = 0;
        do
        :: j < N ->
            if
            :: has(m_members[m], j) && r_state[m * N + j] != UNKNOWN && r_name[m * N + j] == i ->
                have++;
                if
                :: r_state[m * N + j] == COMMITTED || r_state[m * N + j] == ABORTED -> verdict = r_state[m * N + j]
                :: r_state[m * N + j] == DONE -> finished++
                :: else
                fi
            :: else
            fi;
            j++
        :: else -> break
        od;
        if
        :: have == 0
        :: have > 0 && verdict != UNKNOWN -> tell_verdict(m, i, verdict)
        :: have > 0 && verdict == UNKNOWN && finished == size(m_members[m]) -> tell_verdict(m, i, COMMITTED)
        :: have > 0 && verdict == UNKNOWN && finished != size(m_members[m]) && m_lost[m] > i -> tell_verdict(m, i, ABORTED)
        :: else -> tell_verdict(m, i, REDONE)
        fi;
        i++
    :: else -> break
    od;
    i = 0; j = 0; k = 0; finished = 0; have = 0; verdict = 0
}

inline hear_done(m, p, nm) {
    if
    :: has(m_members[m], p) && nm == m_number[m] ->
        done[m] = done[m] | bit(p);
        if
#ifdef EARLY_COMMIT
        :: true ->
#else
        :: done[m] == m_members[m] ->
#endif
            k = 0;
            do
            :: k < N ->
                if
                :: has(m_members[m], k) && with[k] == m -> say(k, m_verdict, m_generation[m], nm, COMMITTED, 0)
                :: else
                fi;
                k++
            :: else -> break
            od;
            k = 0
        :: else
        fi
    :: else
    fi
}

inline hear_report(m, p, nm, state, at) {
    if
    :: has(m_members[m], p) && at == m_number[m] ->
        reported[m] = reported[m] | bit(p);
        r_name[m * N + p] = nm;
        r_state[m * N + p] = state;
        if
        :: reported[m] == m_members[m] -> judge(m)
        :: else
        fi
    :: else
    fi
}

inline hear(m, p, channel) {
    channel?what(a, b, c);
    if
    :: mode[m] != ACTIVE -> if :: what == m_gone -> present[m] = present[m] & ~bit(p) :: else fi
    :: mode[m] == ACTIVE && what == m_done -> hear_done(m, p, a)
    :: mode[m] == ACTIVE && what == m_report -> hear_report(m, p, b, c, a)
    :: mode[m] == ACTIVE && what == m_gone -> if :: has(m_members[m], p) -> lose(m, p) :: else fi
#ifdef NO_FENCING
    :: mode[m] == ACTIVE && what == m_moved -> if :: has(m_members[m], p) -> lose(m, p) :: else fi
#else
    :: mode[m] == ACTIVE && what == m_moved -> mode[m] = OVER
#endif
    fi;
    i = 0; j = 0; k = 0; a = 0; b = 0; c = 0; what = 0
}

proctype First() {
    byte i, j, k, p, a, b, c, finished, have, verdict;
    mtype what;
end:
    do
    :: atomic {
        mode[0] == ACTIVE && (nempty(up[0]) || nempty(up[1]) || nempty(up[2])) ->
        if
        :: nempty(up[0]) -> p = 0
        :: nempty(up[1]) -> p = 1
        :: nempty(up[2]) -> p = 2
        fi;
        hear(0, p, up[p]);
        p = 0
    }
    :: atomic { mode[0] == ACTIVE -> mode[0] = OVER } /* it crashes */
    :: mode[0] == OVER -> break
    od
}

/* Of those present, whose knowledge of the epoch in force is newest? */
inline find_newest(m) {
    newest = NOBODY;
    k = 0;
    do
    :: k < N ->
        if
        :: has(present[m], k) && (newest == NOBODY || generation[k] * 8 + number[k] > generation[newest % N] * 8 + number[newest % N]) -> newest = k
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

#ifdef HALF_QUORUM
#define enough(m, all) (2 * size(present[m] & (all)) >= size(all))
#else
#define enough(m, all) (2 * size(present[m] & (all)) > size(all))
#endif

inline take_over(m) {
    m_generation[m] = 1;
    k = 0;
    do
    :: k < N ->
        if
        :: has(present[m], k) && generation[k] >= m_generation[m] -> m_generation[m] = generation[k] + 1
        :: else
        fi;
        k++
    :: else -> break
    od;
    m_number[m] = number[newest] + 1;
    m_members[m] = present[m] & members[newest];
    m_lost[m] = ((m_members[m] == members[newest]) -> lost[newest] : m_number[m]);
    mode[m] = ACTIVE;
    k = 0;
    do
    :: k < N ->
        if
        :: has(present[m] & ~m_members[m], k) -> say(k, m_expelled, 0, 0, 0, 0)
        :: else
        fi;
        k++
    :: else -> break
    od;
    tell_epoch(m);
    i = 0; k = 0; newest = 0
}

#define says(p, m) (with[p] == (m) && nempty(up[N + (p)]))

proctype Fresh(byte m) {
    byte i, j, k, p, a, b, c, finished, have, verdict, newest;
    mtype what;
end:
    do
    :: atomic {
        says(0, m) || says(1, m) || says(2, m) ->
        if
        :: says(0, m) -> p = 0
        :: says(1, m) -> p = 1
        :: says(2, m) -> p = 2
        fi;
        hear(m, p, up[N + p]);
        p = 0
    }
    :: atomic {
        mode[m] == GATHERING && present[m] != 0 ->
        find_newest(m);
        if
        :: enough(m, members[newest]) -> take_over(m)
        :: else -> newest = 0
        fi
    }
    od
}

/* ---- peers ---- */

/* Everybody has begun the op under this name, so its data comes; or does not, in time. */
#define begun(p, q) (!has(members[p], q) || name[q] == name[p])
#define can_complete(p) (op[p] == OPEN && !frozen[p] && begun(p, 0) && begun(p, 1) && begun(p, 2))

inline flush(p) {
    do
    :: nempty(down[p]) -> down[p]?what(a, b, c, d)
    :: empty(down[p]) -> break
    od
}

/* Which reports tell of verdicts. A master knows its own, so those of a generation that took over. */
#if defined(NO_HISTORY)
#define HISTORY false
#elif defined(SHORT_HISTORY)
#define HISTORY first
#else
#define HISTORY generation[p] > 1
#endif

inline enter(p) {
    if
    :: a >= generation[p] ->
        first = a > generation[p]; /* epoch of this generation */
        generation[p] = a;
        number[p] = b;
        members[p] = c;
        lost[p] = d;
        frozen[p] = live(p);
        if
        :: live(p) -> to_master(p)!m_report(b, name[p], op[p])
        :: !live(p) && (HISTORY) -> to_master(p)!m_report(b, name[p], op[p])
        :: !live(p) && !(HISTORY) -> to_master(p)!m_report(b, 0, UNKNOWN)
        fi
    :: else
    fi
}

inline apply(p) {
    if
    :: a >= generation[p] && live(p) && b == name[p] ->
        if
        :: c == COMMITTED ->
            assert(op[p] == DONE); /* completeness */
            op[p] = COMMITTED;
            assert(op[0] != ABORTED && op[1] != ABORTED && op[2] != ABORTED) /* agreement */
        :: c == ABORTED ->
            op[p] = ABORTED;
            assert(op[0] != COMMITTED && op[1] != COMMITTED && op[2] != COMMITTED) /* agreement */
        :: c == REDONE ->
            op[p] = OPEN;
            name[p] = number[p]
        fi;
        frozen[p] = false
    :: else
    fi
}

/* Goes to a fresh master and says what it knows: the master reads generation, number, members, lost. */
inline resume_at(p, m) {
    with[p] = m;
    if
    :: mode[m] == GATHERING -> present[m] = present[m] | bit(p)
    :: mode[m] == ACTIVE -> say(p, m_expelled, 0, 0, 0, 0) /* the run went on without it */
    fi
}

#define waits_at(p, m) (with[p] == (m) && mode[m] == GATHERING)

proctype Peer(byte p) {
    byte a, b, c, d;
    bool first;
    mtype what;
end:
    do
    :: atomic {
        !dead[p] && !expelled[p] && can_complete(p) ->
        op[p] = DONE;
        if
        :: number[p] == name[p] && (with[p] == 0 || mode[with[p] % 3] == ACTIVE) -> to_master(p)!m_done(name[p], 0, 0)
        :: else /* told when it reports */
        fi
    }
    :: atomic {
        !dead[p] && !expelled[p] && nempty(down[p]) ->
        down[p]?what(a, b, c, d);
        if
        :: what == m_epoch -> enter(p)
        :: what == m_verdict -> apply(p)
        :: what == m_expelled -> expelled[p] = true
        fi;
        a = 0; b = 0; c = 0; d = 0; what = 0; first = false
    }
    /* The first master is gone, or only silent. What it has sent and was not read yet is lost. */
    :: atomic {
        !dead[p] && !expelled[p] && with[p] == 0 ->
        up[p]!m_moved(0, 0, 0);
        flush(p);
        a = 0; b = 0; c = 0; d = 0; what = 0;
        if
        :: resume_at(p, 1)
        :: resume_at(p, 2)
        fi
    }
    /* Who waits looks again, from the start of the list, and for a master that has a run. */
    :: atomic { !dead[p] && waits_at(p, 2) -> present[2] = present[2] & ~bit(p); resume_at(p, 1) }
    :: atomic { !dead[p] && waits_at(p, 1) && mode[2] == ACTIVE -> present[1] = present[1] & ~bit(p); resume_at(p, 2) }
    :: atomic {
        !dead[p] && !crashed_one ->
        crashed_one = true;
        dead[p] = true;
        to_master(p)!m_gone(0, 0, 0)
    }
    od
}

#define ended(p) (dead[p] || expelled[p] || !live(p))

init {
    byte p;
    atomic {
        do
        :: p < N ->
            op[p] = OPEN; name[p] = 1; generation[p] = 1; number[p] = 1; members[p] = ALL;
            run Peer(p);
            p++
        :: else -> break
        od;
        mode[0] = ACTIVE; m_generation[0] = 1; m_number[0] = 1; m_members[0] = ALL; made[9] = true;
        run First();
        run Fresh(1);
        run Fresh(2);
        p = 0
    }
    timeout;
    assert(ended(0) && ended(1) && ended(2)) /* progress */
}
