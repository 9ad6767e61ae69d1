// How a call of the public interface fails: it returns a code, and the thread's text says what was wrong, and what to
// do about it.
#ifndef PCCL_BASE_DETAIL_H
#define PCCL_BASE_DETAIL_H

#include "pccl.h"

enum { DETAIL_CAPACITY = 640 };

// Sets the text, cut to DETAIL_CAPACITY, and returns `code`.
pcclResult_t detail_fail(pcclResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *detail_get(void); // of the last failed call on this thread; "" when there was none

#define RETURN_IF_FAILED(call) \
    do { \
        pcclResult_t code_ = (call); \
        if (code_ != pcclSuccess) return code_; \
    } while (0)

#endif
