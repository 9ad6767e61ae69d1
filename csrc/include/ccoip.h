// Default ports of a run. The master listens on exactly the port it is given; a peer takes the first free port from
// CCOIP_PROTOCOL_PORT_SHARED_STATE upward.
#ifndef CCOIP_H
#define CCOIP_H

#define CCOIP_PROTOCOL_PORT_MASTER 48148
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK 48151

#endif
