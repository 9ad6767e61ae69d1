// The same program as C++20: designated initialisers are part of the source interface.
#include "contract.c"
