// What the frames on the lanes of an engine mean: a table leads from the type of a frame to its owner.
#ifndef PCCL_DATA_ROUTE_H
#define PCCL_DATA_ROUTE_H

#include "data/lane.h"

extern const struct lane_route route;

#endif
