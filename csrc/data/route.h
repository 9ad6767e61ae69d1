// Leads the frames of an engine's connections to their owners, by type: to an algorithm, the call table or the service.
#ifndef PCCL_DATA_ROUTE_H
#define PCCL_DATA_ROUTE_H

#include "link/connection.h"

// For connections whose context is a struct engine.
extern const struct link_events route_events;

#endif
