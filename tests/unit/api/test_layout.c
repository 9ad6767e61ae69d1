// The binary interface, held at compile time: programs and bindings built against these numbers must go on working.
#include <stddef.h>

#include "ccoip.h"
#include "pccl.h"

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "size of " #type)
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), "offset of " #type "." #field)
#define VALUE(name, value) _Static_assert((int)(name) == (value), "value of " #name)

#if defined(__LP64__)
SIZE(ccoip_ipv4_address_t, 4);
SIZE(ccoip_ipv6_address_t, 16);
SIZE(ccoip_inet_address_t, 24);
FIELD(ccoip_inet_address_t, protocol, 0);
FIELD(ccoip_inet_address_t, ipv4, 4);
FIELD(ccoip_inet_address_t, ipv6, 8);
SIZE(ccoip_socket_address_t, 28);
FIELD(ccoip_socket_address_t, inet, 0);
FIELD(ccoip_socket_address_t, port, 24);
SIZE(pcclCommCreateParams_t, 36);
FIELD(pcclCommCreateParams_t, master_address, 0);
FIELD(pcclCommCreateParams_t, peer_group, 28);
FIELD(pcclCommCreateParams_t, p2p_connection_pool_size, 32);
SIZE(pcclReduceInfo_t, 24);
FIELD(pcclReduceInfo_t, local_world_size, 0);
FIELD(pcclReduceInfo_t, tx_bytes, 8);
FIELD(pcclReduceInfo_t, rx_bytes, 16);
SIZE(pcclReduceOperandDescriptor_t, 8);
FIELD(pcclReduceOperandDescriptor_t, datatype, 0);
FIELD(pcclReduceOperandDescriptor_t, distribution_hint, 4);
SIZE(pcclQuantizationOptions_t, 8);
FIELD(pcclQuantizationOptions_t, quantized_datatype, 0);
FIELD(pcclQuantizationOptions_t, algorithm, 4);
SIZE(pcclReduceDescriptor_t, 40);
FIELD(pcclReduceDescriptor_t, count, 0);
FIELD(pcclReduceDescriptor_t, op, 8);
FIELD(pcclReduceDescriptor_t, tag, 16);
FIELD(pcclReduceDescriptor_t, src_descriptor, 24);
FIELD(pcclReduceDescriptor_t, quantization_options, 32);
SIZE(pcclReduceOpDescriptor_t, 56);
SIZE(struct pcclReduceSingleDescriptor_t, 56);
FIELD(pcclReduceOpDescriptor_t, sendbuf, 0);
FIELD(pcclReduceOpDescriptor_t, recvbuf, 8);
FIELD(pcclReduceOpDescriptor_t, descriptor, 16);
SIZE(pcclAsyncReduceOp_t, 16);
FIELD(pcclAsyncReduceOp_t, comm, 0);
FIELD(pcclAsyncReduceOp_t, tag, 8);
SIZE(pcclRankUuid_t, 16);
SIZE(pcclReduceOptions_t, 64);
FIELD(pcclReduceOptions_t, size, 0);
FIELD(pcclReduceOptions_t, retry, 8);
FIELD(pcclReduceOptions_t, launch_only, 9);
FIELD(pcclReduceOptions_t, timeout_ms, 16);
FIELD(pcclReduceOptions_t, block, 24);
FIELD(pcclReduceOptions_t, stochastic, 28);
FIELD(pcclReduceOptions_t, seed, 32);
FIELD(pcclReduceOptions_t, residual_in, 40);
FIELD(pcclReduceOptions_t, residual_out, 48);
FIELD(pcclReduceOptions_t, stream, 56);
SIZE(pcclCollective_t, 120);
FIELD(pcclCollective_t, size, 0);
FIELD(pcclCollective_t, kind, 8);
FIELD(pcclCollective_t, datatype, 12);
FIELD(pcclCollective_t, op, 16);
FIELD(pcclCollective_t, root, 24);
FIELD(pcclCollective_t, group, 32);
FIELD(pcclCollective_t, tag, 40);
FIELD(pcclCollective_t, sendbuf, 48);
FIELD(pcclCollective_t, recvbuf, 56);
FIELD(pcclCollective_t, count, 64);
FIELD(pcclCollective_t, send_counts, 72);
FIELD(pcclCollective_t, recv_counts, 80);
FIELD(pcclCollective_t, survivors, 88);
FIELD(pcclCollective_t, stream, 96);
FIELD(pcclCollective_t, background, 104);
FIELD(pcclCollective_t, everyone, 112);
SIZE(pcclReduceRange_t, 32);
FIELD(pcclReduceRange_t, begin, 0);
FIELD(pcclReduceRange_t, end, 8);
FIELD(pcclReduceRange_t, contributors, 16);
FIELD(pcclReduceRange_t, ranges, 24);
SIZE(pcclTensorInfo_t, 40);
FIELD(pcclTensorInfo_t, name, 0);
FIELD(pcclTensorInfo_t, data, 8);
FIELD(pcclTensorInfo_t, count, 16);
FIELD(pcclTensorInfo_t, datatype, 24);
FIELD(pcclTensorInfo_t, device_type, 28);
FIELD(pcclTensorInfo_t, allow_content_inequality, 32);
SIZE(pcclSharedState_t, 24);
FIELD(pcclSharedState_t, revision, 0);
FIELD(pcclSharedState_t, count, 8);
FIELD(pcclSharedState_t, infos, 16);
SIZE(pcclSharedStateSyncInfo_t, 16);
FIELD(pcclSharedStateSyncInfo_t, tx_bytes, 0);
FIELD(pcclSharedStateSyncInfo_t, rx_bytes, 8);
SIZE(pcclBuildInfo_t, 1);
SIZE(pcclDiagnosisMember_t, 272);
FIELD(pcclDiagnosisMember_t, name, 16);
FIELD(pcclDiagnosisMember_t, address, 92);
FIELD(pcclDiagnosisMember_t, silent_s, 160);
FIELD(pcclDiagnosisMember_t, still_s, 232);
FIELD(pcclDiagnosisMember_t, state_hash, 248);
SIZE(pcclDiagnosisEdge_t, 136);
FIELD(pcclDiagnosisEdge_t, other, 4);
FIELD(pcclDiagnosisEdge_t, acked_bytes, 16);
FIELD(pcclDiagnosisEdge_t, queue_s, 112);
FIELD(pcclDiagnosisEdge_t, reason, 128);
SIZE(pcclDiagnosisNumber_t, 56);
SIZE(pcclDiagnosisJoiner_t, 184);
SIZE(pcclDiagnosisDeparture_t, 232);
FIELD(pcclDiagnosisDeparture_t, reason, 88);
SIZE(pcclDiagnosis_t, 120);
FIELD(pcclDiagnosis_t, members, 40);
FIELD(pcclDiagnosis_t, edges, 48);
#endif

VALUE(CCOIP_PROTOCOL_PORT_MASTER, 48148);
VALUE(CCOIP_PROTOCOL_PORT_SHARED_STATE, 48149);
VALUE(CCOIP_PROTOCOL_PORT_P2P, 48150);
VALUE(CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK, 48151);

int main(void) { return 0; } // it was compiled
