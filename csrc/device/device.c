#include "device/device.h"

#include <pthread.h>
#include <stdio.h>

enum { DEVICES_MAX = 8 };

static const struct device *devices[DEVICES_MAX];
static size_t device_count;

void device_add(const struct device *device) {
    if (device_count < DEVICES_MAX) devices[device_count++] = device;
}

const struct device *device_of(const void *memory) {
    for (size_t i = 0; i < device_count; i++)
        if (devices[i]->owns(memory)) return devices[i];
    return NULL;
}

bool device_is_one(const void *one, const void *other) {
    if (one == other) return true;
    const struct device *device = device_of(one);
    if (device != device_of(other)) return false;
    return device == NULL || device->together == NULL || device->together(one, other);
}

void device_fail(struct device_queue *queue, const char *why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!device_has_failed(queue)) {
        snprintf(queue->error, sizeof queue->error, "%s: %s", queue->device->name, why);
        atomic_store_explicit(&queue->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}
