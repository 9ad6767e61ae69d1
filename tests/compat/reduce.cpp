// The same program as C++20.
#include "reduce.c"
