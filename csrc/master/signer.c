#include "master/signer.h"

#include "net/cursor.h"
#include "net/roster.h"

static bool encode(struct wire_buffer *out, uint64_t run, uint64_t generation, struct wire_epoch epoch,
                   struct wire_quorum quorum) {
    static char purpose[] = "pccl epoch 1"; // no other signature of this key begins so
    uint16_t sorted[WIRE_MAX_MEMBERS];
    struct cursor c = cursor_append(out);
    cursor_bytes(&c, purpose, sizeof purpose);
    cursor_u64(&c, &run);
    cursor_u64(&c, &generation);
    cursor_u64(&c, &epoch.number);
    cursor_u32(&c, &quorum.members);
    cursor_u32(&c, &quorum.old_members);
    cursor_u64(&c, &quorum.newer);
    cursor_u32(&c, &epoch.count);
    roster_sort(epoch.members, epoch.count, sorted);
    for (uint32_t i = 0; i < epoch.count; i++) {
        struct wire_member member = epoch.members[sorted[i]];
        cursor_bytes(&c, member.id.bytes, sizeof member.id.bytes);
        cursor_u64(&c, &member.join_number);
        cursor_u32(&c, &member.group);
        cursor_u8(&c, &member.address.family);
        cursor_bytes(&c, member.address.bytes, sizeof member.address.bytes);
        cursor_u16(&c, &member.address.port);
    }
    return cursor_finish(&c);
}

bool signer_sign(const struct signer *signer, struct wire_header header, struct wire_epoch_commit *message) {
    if (signer->sign == NULL) return true;
    struct wire_buffer bytes = {0};
    bool signed_ = encode(&bytes, header.run, header.generation, message->epoch, message->quorum) &&
                   signer->sign(signer->context, bytes.bytes, bytes.length, message->signature);
    wire_buffer_fini(&bytes);
    return signed_;
}

bool signer_verify(const struct signer *signer, uint64_t run, const struct wire_resume *resume) {
    if (signer->verify == NULL || !resume->accepted) return true;
    struct wire_buffer bytes = {0};
    bool good = encode(&bytes, run, resume->generation, resume->epoch, resume->quorum) &&
                signer->verify(signer->context, bytes.bytes, bytes.length, resume->signature);
    wire_buffer_fini(&bytes);
    return good;
}
