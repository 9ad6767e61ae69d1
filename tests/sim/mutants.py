"""Deliberate bugs: each is one replacement in one shipped source, and the simulator, or the C test that it names, must find it.

`python tests/sim/mutants.py` prints how many seeds each one takes; `... NAME` builds that one and shows the report.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The number of seeds within which a bug must be found. Most are found by the first few; a change of the core gives them others.
SEEDS = 40_000

FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE=",
    '-DPCCL_VERSION="0"',
    "-DNDEBUG",
    "-O1",
    "-I.",
    "-Icsrc",
    "-Icsrc/include",
    "-Itests/unit",
    "-ffunction-sections",
]
BREAK, MISUSE, MASTER, FORK, BLOCK, MEMORY = 16, 512, 2048, 4096, 8192, 16384  # as in sim/sim.h
APART, CANCEL, NOTICE = 32768, 65536, 131072
TEST_SECONDS = 30
LINK = ["-pthread", "-ldl", "-lm"]
REFUSE = "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc"  # the simulator's
SIMULATOR = "sim/test_sim.c"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """One deliberate bug."""

    name: str
    file: str  # below csrc
    old: str  # occurs once
    new: str
    first: int = 1  # seed, of those that `make check-sim` plays: a later one where the bug is rare
    faults: int = 0  # by their numbers in sim.h; 0: by the seed
    test: str = SIMULATOR  # below tests/unit: the program that must fail; another one is a C test


MUTANTS: list[Mutant] = [
    Mutant(
        name="commit_early",  # before all members are done
        file="master/verdicts.c",
        old="entry->done < entry->members) return;",
        new="entry->done + 1 < entry->members) return;",
    ),
    Mutant(
        name="believe_forged_epochs",  # a member tells another master who belongs to the run
        file="master/quorum.c",
        old="signer->verify == NULL || !resume->accepted",
        new="signer->verify != NULL || !resume->accepted",
    ),
    Mutant(
        name="resume_point_too_high",  # after a loss, a segment that one survivor has not completed counts as complete
        file="master/verdicts.c",
        old="entry->done == entry->members) ||",
        new="entry->done + 1 >= entry->members) ||",
    ),
    Mutant(
        name="redo_after_loss",  # in place of ABORT: the caller counts on members that are gone
        file="master/verdicts.c",
        old="group->lost_epoch > entry->name.epoch ? WIRE_VERDICT_ABORT",
        new="group->lost_epoch > UINT64_MAX - 1 ? WIRE_VERDICT_ABORT",
    ),
    Mutant(
        name="abort_without_loss",
        file="master/verdicts.c",
        old="group->lost_epoch > entry->name.epoch ? WIRE_VERDICT_ABORT",
        new="group->lost_epoch > 0 ? WIRE_VERDICT_ABORT",
    ),
    Mutant(
        name="forget_kept",  # a small op that somebody has completed is over for the others
        file="master/verdicts.c",
        old="if (entry->retained > 0) {",
        new="if (entry->retained > group->count) {",
    ),
    Mutant(
        name="wrong_supplier",
        file="master/verdicts.c",
        old="members[entry->supplier]->member.id",
        new="members[(entry->supplier + 1) % group->count]->member.id",
    ),
    Mutant(
        name="nobody_needy",
        file="master/verdicts.c",
        old="if (op_entry_is_open(entry, rank)) out->needy",
        new="if (op_entry_is_open(entry, rank) && rank == UINT32_MAX) out->needy",
    ),
    Mutant(
        name="stale_reports",  # of an older group epoch count
        file="master/verdicts.c",
        old="    return header->epoch == peer->group->group_epoch;",
        new="    return true;",
    ),
    Mutant(
        name="verdict_before_all_reports",
        file="master/verdicts.c",
        old="if (--verdicts->missing == 0)",
        new="if (--verdicts->missing == (peer->group->count > 2))",
    ),
    Mutant(
        name="mismatch_to_one",  # those that have not begun the op do not hear of it
        file="master/verdicts.c",
        old="    membership_send_group(table, group);\n    membership_change_group",
        new="    membership_send(table, peer);\n    membership_change_group",
    ),
    Mutant(
        name="admit_unreachable",  # a newcomer without links
        file="master/candidate.c",
        old="    return !(candidate->unreachable[",
        new="    return !from->accepted || !to->accepted || !(candidate->unreachable[",
    ),
    Mutant(
        name="votes_of_the_dead",  # the count of open votes is not corrected by a departure
        file="master/run.c",
        old="        membership_set_vote(table, peer, 0);\n",
        new="",
    ),
    Mutant(
        name="patient_without_end",  # a peer that says nothing stays
        file="net/arrival.c",
        old="return arrival->at_ns + arrival_wait_ns(arrival, limit_ns);",
        new="return arrival->at_ns + 16 * arrival_wait_ns(arrival, limit_ns);",
    ),
    Mutant(
        name="no_relink",  # links that broke between living members are not made again
        file="master/breaks.c",
        old="    membership_change_group(table, group); // where",
        new="    if (breaks->hearing_ns != 0) membership_change_group(table, group); // where",
    ),
    Mutant(
        name="expect_after_failure",  # a sync without a state moves the expected revision
        file="master/rounds.c",
        old="    if (success) {\n        round->committed = true;",
        new="    if (!success && round->committed) round->expected++;\n    if (success) {\n        round->committed = true;",
        first=12001,
    ),
    Mutant(
        name="receiver_gives",  # the donors in the plan are the receivers
        file="master/rounds.c",
        old="list_part(group, ROLE_DONOR, plan.donors)",
        new="list_part(group, ROLE_RECEIVER, plan.donors)",
    ),
    Mutant(
        name="torn_state_wins",  # a state whose transfer was cut short is a candidate
        file="master/rounds.c",
        old=" && !voter->vote.incomplete;",
        new=";",
    ),
    Mutant(
        name="sync_ends_without_all",  # one receiver that has its state ends the round
        file="master/rounds.c",
        old="receive += part == ROLE_RECEIVER;",
        new="if (part == ROLE_DONE) {\n            receive = 0;\n            break;\n        }\n"
        "        receive += part == ROLE_RECEIVER;",
    ),
    Mutant(
        name="adopt_newest_loss",  # in place of the one that the op was lost by
        file="peer/recovery.c",
        old="i < r->loss_count && r->losses[i].group_epoch <= group_epoch; i++",
        new="i < r->loss_count; i++",
    ),
    Mutant(
        name="reduce_once_more",  # a chunk gets the input of its first sender twice
        file="ops/plan.c",
        old="if (hop < members - 2) return STEP_REDUCE;",
        new="if (hop < members - 1) return STEP_REDUCE;",
    ),
    Mutant(
        name="wait_for_lost_donor",  # what was asked of a donor that is gone is not asked of another
        file="state/delta.c",
        old="        if (delta->leaves[leaf] == index) take_back(",
        new="        if (delta->leaves[leaf] == HERE) take_back(",
    ),
    Mutant(
        name="commit_forgotten",  # a master that takes the run up does not ask which ops were committed
        file="master/verdicts.c",
        old="return past != NULL && past->done > 0;",
        new="return past != NULL && past->done > WIRE_MAX_MEMBERS;",
    ),
    Mutant(
        name="vote_forgotten",  # nor which vote of all has ended already
        file="master/run_takeover.c",
        old="resume.last_vote.number < last->number;",
        new="resume.last_vote.number + 1 < last->number;",
    ),
    Mutant(
        name="sync_forgotten",  # nor which round of shared state
        file="master/run_takeover.c",
        old="    resumed.sync_ended = !resumed.vote_ended && ",
        new="    resumed.sync_ended = resumed.vote_ended && ",
    ),
    Mutant(
        name="revision_forgotten",  # nor the revision that is expected
        file="master/rounds.c",
        old="    round->expected = resume->epoch.sync_expected;",
        new="    round->expected = resume->epoch.sync_expected / 2;",
    ),
    Mutant(
        name="left_master_goes_on",  # no fencing: a master whose peers have left for another one keeps the rest
        file="master/quorum.c",
        old="    if (!know_others(table)) return QUORUM_KEEPS;\n    doubt(quorum, table);",
        new="    if (table->limit_ns > 0) return QUORUM_KEEPS;",
        first=200001,
    ),
    Mutant(
        name="promise_forgotten",  # no fencing: the next master does not hear of a generation that was promised to another one
        file="peer/member.c",
        old="    header.generation = m->recovery.promised;\n    wire_encode_resume",
        new="    header.generation = m->generation;\n    wire_encode_resume",
    ),
    Mutant(
        name="same_generation",  # no fencing: the one that takes the run up does not go beyond the one before
        file="master/gather.c",
        old="        gather->generation = highest + 1;",
        new="        gather->generation = highest;",
    ),
    Mutant(
        name="quorum_of_half",
        file="master/survivors.c",
        old="uint32_t majority = config->count / 2 + 1;",
        new="uint32_t majority = (config->count + 1) / 2;",
    ),
    Mutant(
        name="expel_the_reporter",  # of a broken pair the one whom fewer report
        file="master/breaks.c",
        old="return a->reporters > b->reporters;",
        new="return a->reporters < b->reporters;",
    ),
    Mutant(
        name="expel_the_other_end",  # of a broken pair the one with fewer
        file="master/breaks.c",
        old="a->broken > b->broken;",
        new="a->broken < b->broken;",
    ),
    Mutant(
        name="chooses_when_it_wakes",  # a master that stood still loses those whose word it hears first
        file="master/core.c",
        old="    if (table->now_ns < run->woken_until) {",
        new="    if (run->woken_until < 0) {",
    ),
    Mutant(
        name="refuses_its_own",  # who comes back to it was left behind, though nobody has gone on
        file="master/core.c",
        old="    if (!missed) return false;",
        new="    if (missed || !missed) return false;",
    ),
    Mutant(
        name="vote_twice",  # once in RESUME, once after it
        file="peer/member.c",
        old="    m->vote.unsent = false;\n    m->master = ",
        new="    m->vote.unsent = m->vote.kind != 0;\n    m->master = ",
    ),
    Mutant(
        name="leaves_the_majority",  # a member that has promised looks for another master before this one has waited for the rest
        file="peer/recovery.c",
        old="    if (r->waits_until != INT64_MAX) r->waits_until = now + 2 * limit;\n",
        new="",
    ),
    Mutant(
        name="newcomers_decide",  # those who never heard that newcomers were let in go on elsewhere, and so do the newcomers
        file="master/quorum.c",
        old="    quorum->needed.old_members = (members_before + 1) / 2;",
        new="    quorum->needed.old_members = (members_before + 1) / 2 * (table->limit_ns < 0);",
    ),
    Mutant(
        name="newcomers_take_up",  # newcomers alone take the run up, of which they are most
        file="master/survivors.c",
        old=" && config->old_members >= config->quorum.old_members;",
        new=";",
    ),
    Mutant(
        name="newcomers_stay",  # a master that has lost those that were members before goes on with the newcomers
        file="master/quorum.c",
        old="    if (old_members < needed.old_members) return",
        new="    if (old_members + WIRE_MAX_MEMBERS < needed.old_members) return",
    ),
    Mutant(
        name="losses_forgotten",  # those that others heard of before the master was lost
        file="master/run_takeover.c",
        old="    resumed->loss_count = witness->resume.loss_count - first;",
        new="    resumed->loss_count = 0;",
    ),
    Mutant(
        name="votes_of_those_held",  # those of a peer whose connections a forked child holds
        file="master/run.c",
        old="        membership_set_vote(table, peer, 0);\n",
        new="",
        faults=FORK,
    ),
    Mutant(
        name="forgets_what_it_did_not_say",  # commits that a master's thread blocked before it had told all members of
        file="master/verdicts.c",
        old="return past != NULL && past->done > 0;",
        new="return past != NULL && past->done > WIRE_MAX_MEMBERS;",
        faults=BLOCK,
    ),
    Mutant(
        name="hears_later",  # a member hears what comes after something for which memory was refused
        file="master/membership.c",
        old="    if (peer->gone || table->out_of_memory) return;",
        new="    if (peer->gone) return;",
        faults=MEMORY,
    ),
    Mutant(
        name="done_without_memory",  # a DONE for which memory was refused never came
        file="master/verdicts.c",
        old="    case OP_TABLE_NO_MEMORY: table->out_of_memory = true; break;",
        new="    case OP_TABLE_NO_MEMORY: break;",
        faults=MEMORY,
    ),
    Mutant(
        name="lives_without_memory",  # a communicator goes on although an action of its state machine was lost
        file="peer/decision.c",
        old="        out->failed = true;\n        return &refused;",
        new="        return &refused;",
        faults=MEMORY,
    ),
    Mutant(
        name="refuses_both",  # newcomers that cannot reach each other
        file="master/candidate.c",
        old="other == newcomer || other->gone || !first ||",
        new="other == newcomer ||",
        faults=APART,
    ),
    Mutant(
        name="vote_ends_otherwise",  # for those who hear of it from the next master
        file="peer/recovery.c",
        old="vote->value = outcome->value;",
        new="vote->value = 0;",
    ),
    Mutant(
        name="redo_without_input",  # an op begins again from what it has written over its input
        file="ops/call_table_epochs.c",
        old="    op->restart = true;\n",
        new="",
    ),
    Mutant(
        name="all_reported_done",  # a large op that is not complete here is reported so
        file="ops/call_table_epochs.c",
        old="op->phase == OP_COMPLETE ? WIRE_OP_DONE",
        new="op->algorithm != PLAN_SMALL ? WIRE_OP_DONE",
    ),
    Mutant(
        name="early_of_the_old_epoch",  # what came early outlives its group epoch
        file="ops/call_table_epochs.c",
        old="    call_table_clear_unexpected(table);\n",
        new="",
    ),
    Mutant(
        name="tells_the_lost",  # the outcome names the members of the epoch in which the op was begun first
        file="ops/call_table.c",
        old="    epoch_put(op->epoch);\n    op->epoch = epoch_get(now);\n",
        new="    if (op->epoch == NULL) op->epoch = epoch_get(now);\n",
    ),
    Mutant(
        name="lost_again",  # an op is lost by the loss that its caller has adopted
        file="ops/call_table.c",
        old="if (table->losses[i] > adopted) return",
        new="if (table->losses[i] >= adopted) return",
    ),
    Mutant(
        name="each_its_own_loss",  # members that lose a root in different epochs adopt different ones
        file="ops/call_table.c",
        old="op->args.everyone ? call_table_first_loss(table, adopted) : call_table_counted_loss(table, op);",
        new="call_table_counted_loss(table, op);",
    ),
    Mutant(
        name="loss_of_no_call",  # of a segment, which has adopted nothing
        file="ops/call_table.c",
        old="op->parent == NULL ? op->adopted : op->parent->adopted;",
        new="op->adopted;",
    ),
    Mutant(
        name="cancelled_before_its_root",  # a cancellation counts only where the root was there when the call was made
        file="ops/call_table_epochs.c",
        old="return op->args.subgroup != NULL || op->args.everyone;",
        new="return op->args.subgroup != NULL;",
    ),
    Mutant(
        name="without_a_root",  # an op of everyone goes on when its root is lost
        file="ops/call_table.c",
        old="if (subgroup == NULL) return !collective->rooted || epoch_ring_has(&table->now->ring, &op->args.root_id);",
        new="if (subgroup == NULL) return true;",
    ),
    Mutant(
        name="supplies_nobody_later",  # what was to be supplied before the links were there never is
        file="ops/call_table_epochs.c",
        old="    call_table_supply(table);\n",
        new="",
    ),
    Mutant(
        name="supplied_is_not_kept",  # who was supplied has nothing for the others when the supplier dies
        file="ops/call_table_signals.c",
        old="    keep(table, retained, op, result);\n    acknowledge(table, op, true);",
        new="    free(retained);\n    driver->put(driver->context, result);\n    acknowledge(table, op, true);",
        test="ops/test_call_table.c",
    ),
    Mutant(
        name="retry_ends",  # an op in retry mode ends with a loss as any other
        file="ops/call_table_epochs.c",
        old="    if (op->args.retry || op->args.subgroup != NULL ||",
        new="    if ((op->args.retry && op->parent == NULL) || op->args.subgroup != NULL ||",
    ),
    Mutant(
        name="last_segment_forgotten",
        file="ops/segments.c",
        old="if (s->next == s->count || s->failure",
        new="if (s->next + 1 == s->count || s->failure",
    ),
    Mutant(
        name="segments_of_the_old_name",  # in a new group epoch segments keep their sequence
        file="ops/segments.c",
        old="if (s->epoch != epoch && !op_counter_take",
        new="if (s->epoch == 0 && !op_counter_take",
    ),
    Mutant(
        name="segments_begin_once",  # of those under way one that was committed is not followed by the next
        file="ops/call_table.c",
        old="    begin_segments(table, parent);\n    end_when_over(table, parent);\n}\n\nvoid call_table_release",
        new="    end_when_over(table, parent);\n}\n\nvoid call_table_release",
    ),
    Mutant(
        name="segment_numbers_repeat",
        file="ops/segments.c",
        old="    op->name.segment = (uint16_t)s->next++;",
        new="    op->name.segment = (uint16_t)(s->next++ % 5);",
    ),
    Mutant(
        name="goes_on_frozen",  # an op is moved on in the midst of a new group epoch
        file="ops/call_table_epochs.c",
        old="        op->frozen = true;\n",
        new="",
    ),
    Mutant(
        name="members_of_the_group",  # DONE of an op over a list is counted against all of the peer group
        file="master/verdicts.c",
        old="if (members > entry->members) entry->members = members;",
        new="entry->members = peer->group->count;",
    ),
    Mutant(
        name="list_but_one",  # an op over a list is committed before the last one is done
        file="master/verdicts.c",
        old="if (members > entry->members) entry->members = members;",
        new="entry->members = members - (members < peer->group->count && members > 1);",
    ),
    Mutant(
        name="lost_outside_the_list",  # a loss of somebody whom its list does not name ends an op
        file="ops/call_table.c",
        old="return op->args.retry || op->args.subgroup != NULL ? 0 :",
        new="return op->args.retry ? 0 :",
    ),
    Mutant(
        name="root_lost_unseen",  # an op whose root is dead goes on without it
        file="ops/call_table.c",
        old="(!collective->rooted || subgroup_has(subgroup, op->args.root, table->now));",
        new="true;",
    ),
    Mutant(
        name="members_of_the_old_epoch",  # a report counts those of a list who took part, also the lost
        file="ops/call_table_epochs.c",
        old="op->algorithm == PLAN_SMALL, members_in(op, epoch));",
        new="op->algorithm == PLAN_SMALL, members_in(op, table->now));",
        first=4001,
    ),
    Mutant(
        name="mismatch_of_another_list",  # ends ops of every list under that tag
        file="ops/call_table.c",
        old="return subgroup_mark(own) == subgroup_mark(subgroup) || subgroup_mark(own) == other;",
        new="return true;",
    ),
    Mutant(
        name="shards_of_the_lost",  # kinds that carry shards go on without those that are lost
        file="ops/call_table.c",
        old="return collective->survives && op->args.retry &&",
        new="return (op->args.retry || !collective->survives) &&",
    ),
    Mutant(
        name="survivors_unasked",  # an op over a list goes on without those that are lost though its caller did not ask
        file="ops/call_table.c",
        old="return collective->survives && op->args.retry &&",
        new="return collective->survives &&",
    ),
    # ---- cancellation ----
    Mutant(
        name="cancel_asked_once",  # an operation that begins in a later epoch is not cancelled there
        file="ops/call_table.c",
        old="if ((op->parent != NULL ? op->parent : op)->cancel) table->driver.cancel(table->driver.context, &op->name);",
        new="",
        test="ops/test_call_table.c",
    ),
    Mutant(
        name="cancel_spares_those_that_wait",  # a member that has not begun the operation begins it afterwards
        file="ops/call_table_epochs.c",
        old="op_queue_remove(&table->waiting, op); call_table_end(table, op, ending_of(op)); } else if",
        new="} else if",
        faults=CANCEL,
    ),
    Mutant(
        name="begins_after_a_cancellation",  # in the same epoch, under the name of the operation that was cancelled
        file="ops/call_table_epochs.c",
        old="if (table->ended_in == table->now->group_epoch && table->ended_in != 0) return;",
        new="",
        faults=CANCEL,
    ),
    Mutant(
        name="cancelled_is_redone",
        file="ops/call_table_epochs.c",
        old="if (op->cancelled) { call_table_end(table, op, ending_of(op)); return; }",
        new="",
        faults=CANCEL,
    ),
    Mutant(
        name="cancelled_twice",  # a call that ends takes a cancellation of the next call of its tag for its own
        file="ops/call_table_epochs.c",
        old="!part->mismatched && !part->cancelled)",
        new="!part->mismatched)",
        first=2001,
        faults=CANCEL | MISUSE | BREAK,
    ),
    Mutant(
        name="queued_misses_its_end",  # an operation that was never moved begins again though the others have ended it
        file="ops/call_table_epochs.c",
        old="if (op->parent == NULL && !needs_some(op) && "
        "call_table_take_mismatch(table, op, call_table_counted_loss(table, op)))",
        new="if (op->phase == OP_ENDED)",
        test="ops/test_call_table.c",
    ),
    Mutant(
        name="newcomers_meet_old_verdicts",  # a member takes a verdict on an operation of the dead for one of its next
        file="ops/call_table.c",
        old="if ((*at)->name.epoch < group_epoch)",
        new="if ((*at)->name.epoch < 1)",
        test="ops/test_call_table.c",
    ),
    Mutant(
        name="cancel_without_an_epoch",  # nothing ends the operation at those who have begun it
        file="master/verdicts.c",
        old="membership_change_group(table, group); encode(table, group->group_epoch, &verdict);",
        new="encode(table, group->group_epoch, &verdict);",
        faults=CANCEL,
    ),
    Mutant(
        name="cancel_forgotten",  # the next master takes a cancellation for a mismatch
        file="master/verdicts.c",
        old="entry->cancelled ? WIRE_VERDICT_CANCEL : WIRE_VERDICT_MISMATCH",
        new="WIRE_VERDICT_MISMATCH",
        faults=CANCEL | MASTER,
    ),
    Mutant(
        name="commit_after_cancel_forgotten",  # the next master hears of the cancellation and not of the COMMIT after it
        file="peer/recovery.c",
        old="if (wire_verdict_cancels(r->past[i].kind)) r->past[i].kind = verdict->kind;",
        new="",
        test="peer/test_recovery.c",
    ),
    Mutant(
        name="cancel_of_another_epoch",
        file="master/verdicts.c",
        old="if (cancel->name.epoch != header->epoch) {",
        new="if (cancel->name.epoch > UINT64_MAX - 1) {",
        test="master/test_verdicts.c",
    ),
    # ---- members that leave, and how many there are ----
    Mutant(
        name="leaves_at_once",  # in the middle of operations, and not between two
        file="master/run.c",
        old="peer->leaving = true;",
        new='membership_drop(table, peer, WIRE_LOSS_LEFT, LOG_INFO, "it leaves");\n    peer->leaving = true;',
        faults=NOTICE,
    ),
    Mutant(
        name="who_dies_ended_well",
        file="master/core.c",
        old="membership_drop(&run->table, peer, WIRE_LOSS_DIED",
        new="membership_drop(&run->table, peer, WIRE_LOSS_ENDED",
    ),
    Mutant(
        name="who_leaves_has_died",
        file="master/core.c",
        old="membership_drop(table, peer, WIRE_LOSS_ENDED",
        new="membership_drop(table, peer, WIRE_LOSS_DIED",
    ),
    Mutant(
        name="one_group_hears_why",  # the members of the others hear of no reason
        file="master/run.c",
        old="        membership_send_group(table, group);\n    }\n    table->lost_count = 0;",
        new="        membership_send_group(table, group);\n        message.gone_count = 0;\n    }\n    table->lost_count = 0;",
    ),
    Mutant(
        name="more_than_most",
        file="master/run.c",
        old="most > table->count ? most - table->count : 0",
        new="most > table->count ? most - table->count + 1 : 0",
    ),
    Mutant(
        name="fewer_than_least",
        file="master/run.c",
        old="run->candidate.count < run->table.limits.least",
        new="run->candidate.count + 1 < run->table.limits.least",
    ),
    # ---- deadlocks ----
    Mutant(
        name="a_slow_member_is_blamed",  # a member in no call counts as one that waits
        file="master/deadlock.c",
        old="if (!peer->stuck) return false;",
        new="",
        test="master/test_deadlock.c",
    ),
    Mutant(
        name="deadlock_of_an_old_epoch",  # an operation that begins again is ended
        file="master/deadlock.c",
        old="return wait->name.epoch == peer->group->group_epoch;",
        new="return wait->name.epoch > 0;",
        test="master/test_deadlock.c",
    ),
    Mutant(
        name="who_has_not_been_heard_is_missing",  # although it waits in the same operation
        file="master/deadlock.c",
        old="look->list[i].missing[k]->waits_at != begin && ",
        new="",
        test="master/test_deadlock.c",
    ),
    Mutant(
        name="a_computing_thread_is_forgotten",  # which may make the call that the other member waits for
        file="master/deadlock.c",
        old="return (int64_t)waits->all_us >= table->deadlock_ns / US_NS;",
        new="return true;",
        test="master/test_deadlock.c",
    ),
    # ---- members that send malformed frames, and RESUME ----
    Mutant(
        name="malformed_frames_are_forgiven",
        file="master/breaks.c",
        old="if (pair->malformed < BREAKS_MALFORMED_PAIR_MAX) pair->malformed++;",
        new="",
        test="master/test_breaks.c",
    ),
    Mutant(
        name="malformed_frames_blame_the_older",
        file="master/breaks.c",
        old='membership_expel(table, later, "malformed',
        new='membership_expel(table, (struct peer_record *)stays, "malformed',
        test="master/test_breaks.c",
    ),
    Mutant(
        name="resume_in_the_name_of_the_living",  # anybody who knows the secret of the run ends a membership
        file="master/core.c",
        old="table->now_ns < peer->heard.at_ns + table->limit_ns / 2;",
        new="table->now_ns < peer->heard.at_ns;",
        test="master/test_core_recovery.c",
    ),
    Mutant(
        name="never_completed",  # a supervisor cannot tell the end of a run from its loss
        file="master/core.c",
        old="activity == WIRE_IDLE && run->completed,",
        new="false,",
        test="master/test_core.c",
    ),
    # ---- links, what is seen of them, and states that differ ----
    Mutant(
        name="silence_is_life",
        file="link/failure_detector.c",
        old='return "silent";',
        new="return NULL;",
        test="link/test_failure_detector.c",
    ),
    Mutant(
        name="waits_for_an_epoch_without_end",
        file="link/failure_detector.c",
        old='return "its next epoch did not come";',
        new="return NULL;",
        test="link/test_failure_detector.c",
    ),
    Mutant(
        name="impatient_with_the_patient",  # a link whose other end was seen to pause
        file="link/failure_detector.c",
        old="if (detector->patient) return most;",
        new="",
        test="link/test_failure_detector.c",
    ),
    Mutant(
        name="no_excuse_for_the_parked",
        file="link/failure_detector.c",
        old="if (detector->parked_ns != 0) detector->parked_ns = now_ns;",
        new="",
        test="link/test_failure_detector.c",
    ),
    Mutant(
        name="fastest_forgotten",  # the fastest heartbeat of the span before counts no more
        file="link/stats.c",
        old="stats->least_us[1] = stats->least_at == 0 ? travel_us : stats->least_us[0];",
        new="stats->least_us[1] = travel_us;",
        test="link/test_stats.c",
    ),
    Mutant(
        name="segments_counted_again",
        file="link/stats.c",
        old="stats->judged_segments = segments;",
        new="",
        test="link/test_stats.c",
    ),
    Mutant(
        name="queue_by_the_worst",  # one late heartbeat counts as a queue
        file="link/stats.c",
        old="stats->travel_us[(count - 1) / 2]",
        new="stats->travel_us[count - 1]",
        test="link/test_stats.c",
    ),
    Mutant(
        name="speed_of_an_instant",  # less time than the kernel measures in
        file="link/pace.c",
        old="if (!first && busy_us < BUSY_LEAST_US) return;",
        new="",
        test="link/test_pace.c",
    ),
    Mutant(
        name="frames_out_of_line",
        file="link/pace.c",
        old="FRAME_LEAST, PACE_CHUNK_MAX) / CHUNK_ALIGN * CHUNK_ALIGN",
        new="FRAME_LEAST, PACE_CHUNK_MAX)",
        test="link/test_pace.c",
    ),
    Mutant(
        name="spread_without_lanes",  # where tensors go from all to all
        file="peer/mesh.c",
        old="n->lanes[membership] = weighted ||",
        new="n->lanes[membership] =",
        test="peer/test_mesh.c",
    ),
    Mutant(
        name="drops_candidates",
        file="peer/mesh.c",
        old="if (n->in[MESH_EPOCH] || n->in[MESH_CANDIDATE]) {",
        new="if (n->in[MESH_EPOCH]) {",
        test="peer/test_mesh.c",
    ),
    Mutant(
        name="reports_again_and_again",
        file="peer/mesh.c",
        old="if ((malformed ? n->malformed_in : n->reported_in) == at->header.epoch) return;",
        new="",
        test="peer/test_mesh.c",
    ),
    Mutant(
        name="the_last_difference_unseen",
        file="state/delta.c",
        old="i <= shorter >> shift; i++",
        new="i < shorter >> shift; i++",
        test="state/test_delta.c",
    ),
    Mutant(
        name="neighbours_are_torn",  # memory that ends where torn memory begins
        file="state/content.c",
        old="set->ranges[low].begin < end;",
        new="set->ranges[low].begin <= end;",
        test="state/test_content.c",
    ),
    Mutant(
        name="whole_with_its_neighbour",
        file="state/content.c",
        old="if (gone->ranges[k].begin > rest.begin)",
        new="if (gone->ranges[k].begin > rest.end)",
        test="state/test_content.c",
    ),
    Mutant(
        name="leaves_never_arrive",
        file="state/sync_receive.c",
        old="delta_arrived(sync->delta, job->leaf, job->donor, platform_now_ns());",
        new="",
        test="state/test_sync.c",
    ),
    Mutant(
        name="asks_those_that_left",  # donors without a link
        file="state/sync_receive.c",
        old="if (sync->donors[i].peer == NULL) delta_drop(sync->delta, i);",
        new="",
        test="state/test_sync.c",
    ),
]


def run(*command: str | Path) -> None:
    """Runs a compiler."""
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True)


def compile_one(source: str | Path, out: Path, *, here: Path | None = None) -> Path:
    """Compiles one source; `here`: the folder that its includes are relative to."""
    level = [flag for name in LEVELS if Path(source).stem.endswith(f"_{name}") for flag in LEVEL_FLAGS[name]]
    run(shutil.which("cc") or "cc", *FLAGS, *level, *(("-iquote", here) if here else ()), "-c", source, "-o", out)
    return out


def change(mutant: Mutant, folder: Path) -> Path:
    """Compiles the source with the bug in it."""
    source = ROOT / "csrc" / mutant.file
    text = source.read_text(encoding="utf-8")
    place = re.compile(r"\s+".join(map(re.escape, mutant.old.split())))  # wherever the formatter breaks lines
    changed_text, count = place.subn(lambda _: mutant.new, text)
    if count != 1:
        raise ValueError(f"mutant {mutant.name}: its place occurs {count} times in csrc/{mutant.file}")
    changed = folder / f"{mutant.name}.c"
    changed.write_text(changed_text, encoding="utf-8")
    return compile_one(changed, folder / f"{mutant.name}.o", here=source.parent)


#: Of the kernels for instruction sets, as in CMakeLists.txt.
LEVEL_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"],
    "neon": [],
}
LEVELS = {"x86_64": ["avx2", "avx512"], "aarch64": ["neon"]}.get(platform.machine(), [])

#: What a program links beside its mutant.
LIBRARY = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "csrc").rglob("*.c"), *(ROOT / "sim").glob("*.c")]
    if path.stem.rpartition("_")[2] not in LEVEL_FLAGS or path.stem.rpartition("_")[2] in LEVELS
)


def compile_library(folder: Path) -> Path:
    """Makes the archive of the core and of the simulator."""
    objects = [folder / (source.replace("/", "_") + ".core.o") for source in LIBRARY]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, LIBRARY, objects))
    archive = folder / "core.a"
    run(shutil.which("ar") or "ar", "rcs", archive, *objects)
    return archive


def build(mutant: Mutant | None, test: str, archive: Path, folder: Path) -> Path:
    """Returns the simulator, or a C test, with a bug in it; None: without one."""
    changed = [] if mutant is None else [change(mutant, folder)]
    name = Path(test).stem if mutant is None else mutant.name
    source = compile_one(f"tests/unit/{test}", folder / f"{name}.test.o", here=(ROOT / "tests/unit" / test).parent)
    wrap = [REFUSE] if test == SIMULATOR else []
    run(shutil.which("cc") or "cc", source, *changed, archive, "-o", folder / name, *wrap, *LINK)
    return folder / name


def passes(program: Path, seconds: float = TEST_SECONDS) -> bool:
    """Whether a C test passes within so many seconds. One that a bug hangs does not."""
    try:
        return subprocess.run([program], capture_output=True, check=False, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def hunt(program: Path, first: int, faults: int = 0, seeds: int = SEEDS) -> tuple[int | None, str]:
    """The number of seeds until one fails (None: all pass), and what was said."""
    done = subprocess.run([program, str(first), str(seeds), "1", str(faults)], capture_output=True, text=True, check=False)
    failed = [line for line in done.stderr.splitlines() if line.startswith("seed ")]
    if done.returncode < 0:
        return 0, f"seed ?: ended by signal {-done.returncode}\n{done.stderr}"
    return (int(failed[0].split()[1].rstrip(",")) - first + 1 if failed else None), done.stderr


def main() -> None:
    """Prints how many seeds each mutant takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = compile_library(folder)
        for mutant in MUTANTS:
            if sys.argv[1:] and mutant.name not in sys.argv[1:]:
                continue
            program = build(mutant, mutant.test, library, folder)
            if mutant.test != SIMULATOR:
                print(f"{mutant.name:28} {mutant.test} {'passes' if passes(program) else 'fails'}", flush=True)
                continue
            found, said = hunt(program, mutant.first, mutant.faults)
            told = next((line for line in said.splitlines() if line.startswith("seed ")), "not found")
            print(f"{mutant.name:28} {'-' if found is None else found:>6} of {SEEDS}: {told}", flush=True)
            if sys.argv[1:]:
                print(said)


if __name__ == "__main__":
    main()
