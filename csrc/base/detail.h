// What the last failed call on this thread was about, in words: what was wrong, and what to do about it.
#ifndef PCCL_BASE_DETAIL_H
#define PCCL_BASE_DETAIL_H

enum { DETAIL_CAPACITY = 640 };

void detail_set(const char *format, ...) __attribute__((format(printf, 1, 2))); // cut to DETAIL_CAPACITY
const char *detail_get(void);                                                   // "" when nothing was set; never NULL

#endif
