// Files of keys (net/keys): the input is a file, which is loaded or refused with a reason. What is loaded finds its own
// secrets, and those of a named run; neither memory nor time grow beyond the size of a file.
#include "net/keys.h"

#include <fcntl.h>
#include <unistd.h>

#include "fuzz.h"

#ifdef PCCL_HAVE_TLS

static void check(struct keys *keys) {
    struct wire_run run;
    struct keys_secret secret;
    size_t count = keys_secret_count(keys);
    MUST(count >= 1 && count <= KEYS_MAX_SECRETS);
    for (size_t i = 0; i < count; i++) {
        char identity[KEYS_IDENTITY_BYTES];
        keys_identity(keys, i, identity);
        MUST(keys_find(keys, identity, strlen(identity), false, &secret, &run));
    }
    struct wire_run named = {.chars = "alpha"};
    struct keys *own = keys_of_run(keys, &named);
    MUST(own != NULL ? keys_secret_count(own) == count : keys_run(keys)->chars[0] != 0);
    if (own != NULL) MUST(!keys_find(keys, "nonsense", 8, true, &secret, &run));
    keys_release(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64] = "/tmp/fuzz_keys_XXXXXX";
    if (file < 0) {
        file = mkstemp(path);
        unlink(path);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    MUST(file >= 0 && ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
    char reason[KEYS_REASON_BYTES] = "";
    struct fuzz_work before = fuzz_work_begin();
    struct keys *keys = keys_load(path, reason);
    MUST(keys != NULL || strlen(reason) > strlen(path));
    if (keys != NULL) check(keys);
    keys_release(keys);
    fuzz_work_end(&before, size);
    return 0;
}

#else

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == NULL && size > 0; }

#endif
