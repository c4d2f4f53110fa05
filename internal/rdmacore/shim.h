// The C side of package rdmacore, as Go sees it: functions on scalars and flat structs. No callbacks, no threads, and on the
// data path nothing that blocks but rc_nap. Functions that return int return 0 or a positive errno, unless they say otherwise.
//
// The bodies are in the other headers, static inline. Where the rdma-core headers are missing there are none: the functions
// stay unresolved weak symbols, rc_load fails first, and nobody calls them.

#ifndef RC_SHIM_H
#define RC_SHIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#define RC_HEADERS 1
#endif
#endif

#ifdef RC_HEADERS
#define RC_FN static inline __attribute__((unused))
#else
#define RC_FN extern __attribute__((weak))
#endif

struct ibv_context;
struct ibv_pd;
struct ibv_mr;
struct ibv_ah;
struct rdma_cm_id;
struct rdma_event_channel;
struct rc_channel;

// Loading. rc_load fills the table of library functions; on failure it returns -1 and says why in text.
#define RC_NO_HEADERS (-2)
static int rc_load(char *text, size_t size);

// Devices. Each context that rc_get_devices lists carries a reference, which rc_put_device gives back.
struct rc_device_attr {
	char firmware[64];
	uint64_t node_guid, sys_image_guid, max_mr_size;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int transport; // 1: IB, 2: iWARP
	int ports, atomic_cap;
	int max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
	int max_qp_rd_atom, max_qp_init_rd_atom, max_srq, max_srq_wr, max_srq_sge, max_ah;
};

struct rc_port_attr {
	int state, link_layer, mtu, max_mtu; // MTUs in bytes
	int lid, sm_lid, gids;
	uint32_t max_msg_size;
};

struct rc_async_event {
	int type, port;
	uint32_t qp_num;
	uint64_t object; // the handle of the CQ or SRQ
};

RC_FN int rc_get_devices(struct ibv_context ***list, int *n); // free the list with free
RC_FN void rc_put_device(struct ibv_context *ctx);
RC_FN const char *rc_device_name(struct ibv_context *ctx);
RC_FN int rc_query_device(struct ibv_context *ctx, struct rc_device_attr *out);
RC_FN int rc_query_port(struct ibv_context *ctx, int port, struct rc_port_attr *out);
RC_FN int rc_query_gid(struct ibv_context *ctx, int port, int index, uint8_t *gid);
RC_FN int rc_async_fd(struct ibv_context *ctx);
RC_FN int rc_get_async_event(struct ibv_context *ctx, struct rc_async_event *out);

// Protection domains and memory.
RC_FN int rc_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd);
RC_FN int rc_dealloc_pd(struct ibv_pd *pd);
RC_FN int rc_has_iova(void); // whether rc_reg_mr takes an iova that is not addr
RC_FN int rc_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t size, uint64_t iova, int access, struct ibv_mr **mr, uint32_t *lkey,
		    uint32_t *rkey);
RC_FN int rc_dereg_mr(struct ibv_mr *mr);

// rc_ah_attr is the way to a port.
struct rc_ah_attr {
	uint8_t gid[16];
	uint32_t flow_label;
	uint16_t lid;
	uint8_t port, sl, src_path_bits, static_rate;
	uint8_t global, gid_index, hop_limit, traffic_class;
};

RC_FN int rc_create_ah(struct ibv_pd *pd, const struct rc_ah_attr *attr, struct ibv_ah **ah);
RC_FN int rc_destroy_ah(struct ibv_ah *ah);

// Completions. A CQ has a small stash: what a wait has found is kept there for the next poll, which takes that first.
#define RC_STASH 32

// rc_wc has the layout of verbs.Completion: rc_poll writes into the caller's slice.
struct rc_wc {
	uint64_t id;
	uint8_t status, opcode, flags, pad;
	uint32_t byte_len, imm, qp_num, vendor_err, inv_rkey, src_qp;
	uint16_t slid;
	uint8_t sl, path_bits;
};

struct rc_cq {
	struct ibv_cq *cq;
	struct rc_channel *channel;
	uint64_t handle; // by which Go finds its own object
	int solicited;   // events for solicited and failed completions only
	int ud;          // UD QPs that receive by it
	int armed;       // an event is on its way or in the channel: no need to arm
	int head, n;
	struct rc_wc stash[RC_STASH];
};

RC_FN int rc_create_cq(struct ibv_context *ctx, int depth, struct rc_channel *channel, int solicited, uint64_t handle,
		       struct rc_cq **cq, int *granted);
RC_FN int rc_destroy_cq(struct rc_cq *cq);
RC_FN int rc_poll(struct rc_cq *cq, struct rc_wc *wc, int n); // with an empty stash; the number, or a negative errno

// A completion channel knows its CQs. The interrupt word is Go's, to end a spin.
struct rc_channel {
	struct ibv_comp_channel *channel;
	uint32_t interrupt;
	int taken;       // by the last drain: events, or a negative errno; 1 also for one that is late
	int late;        // a nap saw an event, and left it in the channel
	int n, cap;
	struct rc_cq **cqs;
};

RC_FN int rc_create_channel(struct ibv_context *ctx, struct rc_channel **channel);
RC_FN int rc_channel_fd(struct rc_channel *c);
RC_FN int rc_destroy_channel(struct rc_channel *c); // leaves the fd open: it is Go's
RC_FN int rc_attach_cq(struct rc_channel *c, struct rc_cq *cq);
RC_FN void rc_detach_cq(struct rc_channel *c, struct rc_cq *cq);
RC_FN int rc_spin(struct rc_channel *c, int64_t ns); // 1: completions, or interrupted; 0: nothing; or a negative errno
#define RC_AT_ONCE 2				     // completions at the first look
RC_FN int rc_arm(struct rc_channel *c); // the same after arming every CQ, unless there are completions before
RC_FN int rc_nap(struct rc_channel *c, int wake, int ms); // sleeps until there is an event or wake was written to. 0: neither
RC_FN int rc_drain(struct rc_channel *c);            // the number of events taken, or a negative errno

// Work requests. Go writes them into the flat arrays of a queue, one crossing posts them all.
#define RC_BATCH 32

// rc_sge has the layout of verbs.SGE.
struct rc_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

// rc_send_wr: what an opcode or the type of the QP does not use is not looked at.
struct rc_send_wr {
	uint64_t id, remote_addr;
	uint64_t compare_add, swap; // atomics
	struct ibv_ah *ah;          // UD
	uint32_t remote_qpn, remote_qkey;
	uint32_t rkey; // the one to make invalid, too
	uint32_t imm;
	uint32_t inline_len; // not 0: the payload is in the QP's inline buffer
	uint16_t num_sge;
	uint8_t opcode, flags; // as in package verbs
};

struct rc_recv_wr {
	uint64_t id;
	uint32_t num_sge;
};

// rc_posted says how many requests were taken, and the errno of the first that was not.
struct rc_posted {
	int n, err;
};

// rc_rq is a receive queue: that of a QP, or one that is shared.
struct rc_rq {
	struct ibv_qp *qp; // one of the two
	struct ibv_srq *srq;
	int max_sge;
	struct rc_recv_wr *wr; // RC_BATCH of them
	struct rc_sge *sge;    // RC_BATCH times max_sge
};

RC_FN struct rc_posted rc_post_recv(struct rc_rq *rq, int n);

// Shared receive queues.
struct rc_srq {
	uint64_t handle; // by which Go finds its own object
	struct rc_rq rq;
};

struct rc_srq_attr {
	int max_wr, max_sge, limit;
};

RC_FN int rc_create_srq(struct ibv_pd *pd, struct rc_srq_attr *attr, uint64_t handle, struct rc_srq **srq);
RC_FN int rc_destroy_srq(struct rc_srq *srq);
RC_FN int rc_query_srq(struct rc_srq *srq, struct rc_srq_attr *out);
RC_FN int rc_set_srq_limit(struct rc_srq *srq, int limit);

// Queue pairs.
struct rc_qp_cap {
	int send_wr, recv_wr, send_sge, recv_sge, max_inline;
};

struct rc_qp_init {
	struct rc_cq *send_cq, *recv_cq;
	struct rc_srq *srq; // may be NULL
	struct rc_qp_cap cap;
	int type; // as in package verbs
	int sig_all;
};

struct rc_qp {
	struct ibv_qp *qp;
	uint32_t num;
	int ud;
	struct rc_qp_cap cap;
	struct rc_send_wr *send; // RC_BATCH of them
	struct rc_sge *send_sge; // RC_BATCH times cap.send_sge
	uint8_t *inline_data;    // RC_BATCH times cap.max_inline
	struct rc_rq rq;         // without arrays where there is an SRQ
};

struct rc_qp_attr {
	int state, access, port, pkey_index;
	int path_mtu; // bytes
	int timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic;
	int notify_drained;
	uint32_t qkey, dest_qp_num, rq_psn, sq_psn;
	struct rc_ah_attr ah;
};

// rc_create_qp makes the QP of a cm id, or without one (NULL) a QP that librdmacm does not know.
RC_FN int rc_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, const struct rc_qp_init *init, struct rc_qp **qp);
RC_FN void rc_detach_qp(struct rdma_cm_id *id); // librdmacm forgets the id's QP
RC_FN int rc_destroy_qp(struct rc_qp *qp);
RC_FN struct rc_posted rc_post_send(struct rc_qp *qp, int n);
RC_FN int rc_query_qp(struct rc_qp *qp, struct rc_qp_attr *out);
RC_FN int rc_modify_qp(struct rc_qp *qp, const struct rc_qp_attr *attr, int mask); // of ibv_qp_attr_mask

// Connections. Addresses are sockaddr_in or sockaddr_in6 in RC_ADDR bytes.
#define RC_ADDR 28

struct rc_conn {
	uint8_t private_len, responder_resources, initiator_depth, retry_count, rnr_retry_count;
	uint8_t private_data[256];
};

struct rc_cm_event {
	uint64_t handle;           // of the id that the event is for
	struct rdma_cm_id *new_id; // of a connect request
	int type, status;
	int err; // errno after the library's own part of the work, for a status of -1
	struct rc_conn conn;
};

RC_FN int rc_cm_open(struct rdma_event_channel **channel, int *fd);
RC_FN void rc_cm_close(struct rdma_event_channel *channel);
RC_FN int rc_cm_event(struct rdma_event_channel *channel, struct rc_cm_event *out); // acknowledged already
RC_FN int rc_create_id(struct rdma_event_channel *channel, uint64_t handle, struct rdma_cm_id **id);
RC_FN void rc_set_handle(struct rdma_cm_id *id, uint64_t handle);
RC_FN int rc_destroy_id(struct rdma_cm_id *id);
RC_FN struct ibv_context *rc_id_context(struct rdma_cm_id *id);
RC_FN void rc_id_addrs(struct rdma_cm_id *id, uint8_t *src, uint8_t *dst);
RC_FN int rc_resolve_addr(struct rdma_cm_id *id, const uint8_t *src, const uint8_t *dst, int timeout_ms); // src may be NULL
RC_FN int rc_resolve_route(struct rdma_cm_id *id, int timeout_ms);
RC_FN int rc_listen(struct rdma_cm_id *id, const uint8_t *addr, int afonly, int backlog);
RC_FN int rc_set_ack_timeout(struct rdma_cm_id *id, int timeout);
RC_FN int rc_connect(struct rdma_cm_id *id, const struct rc_conn *conn);
RC_FN int rc_accept(struct rdma_cm_id *id, const struct rc_conn *conn);
RC_FN int rc_reject(struct rdma_cm_id *id, const uint8_t *private_data, int len);
RC_FN int rc_disconnect(struct rdma_cm_id *id);

#ifdef RC_HEADERS
#include "shim_load.h"
#include "shim_verbs.h"
#include "shim_cq.h"
#include "shim_post.h"
#include "shim_srq.h"
#include "shim_qp.h"
#include "shim_cm.h"
#else
static inline int rc_load(char *text, size_t size)
{
	(void)text;
	(void)size;
	return RC_NO_HEADERS;
}
#endif

#endif
