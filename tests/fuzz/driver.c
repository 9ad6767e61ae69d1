// Stands in for libFuzzer where there is no clang: runs the files and folders it is given, then seeded mutations of
// them; an input that reaches code not seen before is kept to be mutated further. Understands those of libFuzzer's
// flags that run.sh uses:
//   -max_total_time=S  -seed=N  -max_len=N  -timeout=S  -artifact_prefix=P
#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum { EDGES = 1 << 14, INPUTS_MAX = 20000 };

void __sanitizer_cov_trace_pc(void);
void __sanitizer_set_death_callback(void (*callback)(void));
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "handle_abort=1"; }

struct input {
    uint8_t *bytes;
    size_t size;
};

static struct input inputs[INPUTS_MAX];
static size_t input_count;
static uint8_t seen[EDGES], hit[EDGES]; // by hash of the program counter
static const uint8_t *running;
static size_t running_size;
static const char *prefix = "";
static unsigned long runs, seed = 1;
static unsigned timeout_s = 20;
static size_t size_max = 4096;

// Called at every block of the code under test, which is compiled with -fsanitize-coverage=trace-pc.
__attribute__((no_sanitize("address", "undefined"), no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) {
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    hit[(pc ^ (pc >> 13)) % EDGES] = 1;
}

static uint64_t draw(uint64_t limit) {
    uint64_t z = (seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % limit;
}

static void keep_crash(void) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < running_size; i++) hash = (hash ^ running[i]) * 1099511628211u;
    char name[4096];
    snprintf(name, sizeof name, "%scrash-%016llx", prefix, (unsigned long long)hash);
    FILE *file = fopen(name, "wb");
    if (file != NULL) {
        fwrite(running, 1, running_size, file);
        fclose(file);
    }
    fprintf(stderr, "the input is in %s\n", name);
}

static void on_alarm(int signal) {
    (void)signal;
    fprintf(stderr, "one input ran for more than %u s\n", timeout_s);
    abort();
}

// True: it reached something new.
static bool run(const uint8_t *bytes, size_t size) {
    memset(hit, 0, sizeof hit);
    uint8_t *exact = malloc(size + (size == 0)); // so that reading behind the end is seen
    memcpy(exact, bytes, size);
    running = exact;
    running_size = size;
    alarm(timeout_s);
    LLVMFuzzerTestOneInput(exact, size);
    alarm(0);
    running_size = 0;
    free(exact);
    runs++;
    uint8_t new = 0;
    for (size_t i = 0; i < EDGES; i++) {
        new |= (uint8_t)(hit[i] & ~seen[i]);
        seen[i] |= hit[i];
    }
    return new != 0;
}

static void add(const uint8_t *bytes, size_t size) {
    if (input_count == INPUTS_MAX) return;
    uint8_t *copy = malloc(size + (size == 0));
    memcpy(copy, bytes, size);
    inputs[input_count++] = (struct input){copy, size};
}

static void load_file(const char *path) {
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(path, "rb");
    if (file == NULL) return;
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    run(bytes, size);
    add(bytes, size);
}

static void load(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        load_file(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.') load_file(name);
    }
    closedir(folder);
}

// ---- mutations ----

static size_t change(uint8_t *bytes, size_t size) {
    static const uint8_t edges[] = {0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff};
    size_t at = size > 0 ? draw(size) : 0, length = 1 + draw(8);
    if (length > size - at) length = size - at;
    switch (draw(8)) {
    case 0: // another byte
        if (size > 0) bytes[at] = (uint8_t)draw(256);
        return size;
    case 1:
        if (size > 0) bytes[at] = edges[draw(sizeof edges)];
        return size;
    case 2:
        if (size > 0) bytes[at] ^= (uint8_t)(1u << draw(8));
        return size;
    case 3: // without a few
        memmove(bytes + at, bytes + at + length, size - at - length);
        return size - length;
    case 4: // a few twice
        length = size > 0 ? 1 + draw(size - at < 64 ? size - at : 64) : 0;
        if (size + length > size_max) return size;
        memmove(bytes + at + length, bytes + at, size - at);
        return size + length;
    case 5: // a few more
        length = 1 + draw(8);
        if (size + length > size_max) return size;
        memmove(bytes + at + length, bytes + at, size - at);
        for (size_t i = 0; i < length; i++) bytes[at + i] = (uint8_t)draw(256);
        return size + length;
    default: { // the end of another input
        const struct input *other = &inputs[draw(input_count)];
        size_t from = other->size > 0 ? draw(other->size) : 0, take = other->size - from;
        if (at + take > size_max) take = size_max - at;
        memcpy(bytes + at, other->bytes + from, take);
        return at + take;
    }
    }
}

static const char *value_of(const char *argument, const char *flag) {
    size_t length = strlen(flag);
    return strncmp(argument, flag, length) == 0 ? argument + length : NULL;
}

int main(int argc, char **argv) {
    double seconds = 0;
    signal(SIGALRM, on_alarm);
    __sanitizer_set_death_callback(keep_crash);
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = value_of(argv[i], "-max_total_time=")) != NULL) seconds = atof(value);
        if ((value = value_of(argv[i], "-seed=")) != NULL) seed = strtoul(value, NULL, 10);
        if ((value = value_of(argv[i], "-max_len=")) != NULL) size_max = strtoul(value, NULL, 10);
        if ((value = value_of(argv[i], "-timeout=")) != NULL) timeout_s = (unsigned)atoi(value);
        if ((value = value_of(argv[i], "-artifact_prefix=")) != NULL) prefix = value;
    }
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-') load(argv[i]);
    if (input_count == 0) add((const uint8_t *)"", 0);
    size_t loaded = input_count;
    uint8_t *bytes = malloc(size_max + 1);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    double spent = 0;
    while (seconds > 0 && spent < seconds) {
        const struct input *from =
            &inputs[draw(2) ? draw(input_count) : input_count - 1 - draw(input_count < 64 ? input_count : 64)];
        size_t size = from->size < size_max ? from->size : size_max;
        memcpy(bytes, from->bytes, size);
        for (uint64_t changes = 1 + draw(5); changes > 0; changes--) size = change(bytes, size);
        if (run(bytes, size)) add(bytes, size);
        clock_gettime(CLOCK_MONOTONIC, &now);
        spent = (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9;
    }
    printf("Done %lu runs in %.0f second(s), %zu files, %zu inputs kept\n", runs, spent, loaded, input_count - loaded);
    for (size_t i = 0; i < input_count; i++) free(inputs[i].bytes);
    free(bytes);
    return 0;
}
