// Memory that is refused: malloc, calloc and realloc of a program that is linked with --wrap for each come through
// here.
#ifndef PCCL_SIM_REFUSE_H
#define PCCL_SIM_REFUSE_H

#include <stdbool.h>
#include <stddef.h>

// Is this request refused? Asked of each; the program defines it.
bool refuse_now(void);
// Is never refused. Ends the program where there is no memory.
void *refuse_never(size_t bytes);

#endif
