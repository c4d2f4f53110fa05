// Devices, memory, completion queues and queue pairs.

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <time.h>

static inline int rc_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return rc_errno(flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0);
}

static inline int rc_get_devices(struct ibv_context ***list, int *n)
{
	errno = 0;
	*list = rc_api.rdma_get_devices(n);
	return rc_errno(!*list);
}

// librdmacm counts a reference for each context on a list. Lists of one let us keep and return them one by one.
static inline void rc_put_device(struct ibv_context *ctx)
{
	struct ibv_context **list = calloc(2, sizeof(*list));
	if (!list)
		return; // the device stays open
	list[0] = ctx;
	rc_api.rdma_free_devices(list);
}

static inline const char *rc_device_name(struct ibv_context *ctx) { return rc_api.ibv_get_device_name(ctx->device); }

static inline int rc_query_device(struct ibv_context *ctx, struct rc_device_attr *out)
{
	struct ibv_device_attr a;
	int err = rc_code(rc_api.ibv_query_device(ctx, &a));
	if (err)
		return err;
	memset(out, 0, sizeof(*out));
	memcpy(out->firmware, a.fw_ver, sizeof(out->firmware) - 1);
	out->node_guid = be64toh(a.node_guid);
	out->sys_image_guid = be64toh(a.sys_image_guid);
	out->max_mr_size = a.max_mr_size;
	out->vendor_id = a.vendor_id;
	out->vendor_part_id = a.vendor_part_id;
	out->hw_ver = a.hw_ver;
	out->transport = ctx->device->transport_type == IBV_TRANSPORT_IB ? 1
		       : ctx->device->transport_type == IBV_TRANSPORT_IWARP ? 2 : 0;
	out->ports = a.phys_port_cnt;
	out->atomics = a.atomic_cap != IBV_ATOMIC_NONE;
	out->max_qp = a.max_qp;
	out->max_qp_wr = a.max_qp_wr;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_cq = a.max_cq;
	out->max_cqe = a.max_cqe;
	out->max_mr = a.max_mr;
	out->max_pd = a.max_pd;
	out->max_qp_rd_atom = a.max_qp_rd_atom;
	out->max_qp_init_rd_atom = a.max_qp_init_rd_atom;
	out->max_srq = a.max_srq;
	out->max_srq_wr = a.max_srq_wr;
	out->max_ah = a.max_ah;
	return 0;
}

static inline int rc_mtu_bytes(int mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0; }

static inline int rc_query_port(struct ibv_context *ctx, int port, struct rc_port_attr *out)
{
	struct verbs_context *vctx = verbs_get_ctx_op(ctx, query_port);
	struct ibv_port_attr a;
	int err;

	memset(&a, 0, sizeof(a));
	if (vctx)
		err = vctx->query_port(ctx, port, &a, sizeof(a));
	else
		err = rc_api.ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)&a);
	if (err)
		return rc_code(err);
	out->state = a.state;
	out->link_layer = a.link_layer;
	out->mtu = rc_mtu_bytes(a.active_mtu);
	out->max_mtu = rc_mtu_bytes(a.max_mtu);
	out->lid = a.lid;
	out->sm_lid = a.sm_lid;
	out->gids = a.gid_tbl_len;
	out->max_msg_size = a.max_msg_sz;
	return 0;
}

static inline int rc_query_gid(struct ibv_context *ctx, int port, int index, uint8_t *gid)
{
	union ibv_gid g;
	errno = 0;
	int err = rc_errno(rc_api.ibv_query_gid(ctx, port, index, &g) != 0);
	if (!err)
		memcpy(gid, g.raw, sizeof(g.raw));
	return err;
}

static inline int rc_async_fd(struct ibv_context *ctx) { return rc_nonblock(ctx->async_fd) ? -1 : ctx->async_fd; }

static inline int rc_get_async_event(struct ibv_context *ctx, struct rc_async_event *out)
{
	struct ibv_async_event ev;

	if (rc_api.ibv_get_async_event(ctx, &ev))
		return rc_errno(1);
	out->type = ev.event_type;
	out->port = 0;
	out->qp_num = 0;
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qp_num = ev.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = ev.element.port_num;
		break;
	default:
		break;
	}
	rc_api.ibv_ack_async_event(&ev);
	return 0;
}

static inline int rc_alloc_pd(struct ibv_context *ctx, struct ibv_pd **pd)
{
	errno = 0;
	*pd = rc_api.ibv_alloc_pd(ctx);
	return rc_errno(!*pd);
}

static inline int rc_dealloc_pd(struct ibv_pd *pd) { return rc_code(rc_api.ibv_dealloc_pd(pd)); }

static inline int rc_reg_mr(struct ibv_pd *pd, void *addr, size_t size, int access, struct ibv_mr **mr, uint32_t *lkey,
			    uint32_t *rkey)
{
	errno = 0;
	*mr = rc_api.ibv_reg_mr(pd, addr, size, access);
	if (!*mr)
		return rc_errno(1);
	*lkey = (*mr)->lkey;
	*rkey = (*mr)->rkey;
	return 0;
}

static inline int rc_dereg_mr(struct ibv_mr *mr) { return rc_code(rc_api.ibv_dereg_mr(mr)); }

static inline int rc_create_cq(struct ibv_context *ctx, int depth, struct rc_channel *channel, struct rc_cq **cq, int *granted)
{
	struct rc_cq *q = calloc(1, sizeof(*q));
	if (!q)
		return ENOMEM;
	errno = 0;
	q->channel = channel;
	q->cq = rc_api.ibv_create_cq(ctx, depth, q, channel ? channel->channel : NULL, 0);
	if (!q->cq) {
		int err = rc_errno(1);
		free(q);
		return err;
	}
	*cq = q;
	*granted = q->cq->cqe;
	return 0;
}

static inline int rc_destroy_cq(struct rc_cq *cq)
{
	int err = rc_code(rc_api.ibv_destroy_cq(cq->cq));
	if (!err)
		free(cq);
	return err;
}

static inline void rc_copy_wc(struct rc_wc *out, const struct ibv_wc *wc)
{
	out->id = wc->wr_id;
	out->status = wc->status;
	out->opcode = wc->opcode & IBV_WC_RECV ? 7 + (wc->opcode & ~IBV_WC_RECV) : wc->opcode;
	out->flags = (wc->wc_flags & IBV_WC_WITH_IMM ? 1 : 0) | (wc->wc_flags & IBV_WC_WITH_INV ? 2 : 0);
	out->pad = 0;
	out->byte_len = wc->byte_len;
	out->imm = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : 0;
	out->inv_rkey = wc->wc_flags & IBV_WC_WITH_INV ? wc->invalidated_rkey : 0;
	out->qp_num = wc->qp_num;
	out->vendor_err = wc->vendor_err;
}

// rc_poll_device takes up to n (at most RC_STASH) completions from the device.
static inline int rc_poll_device(struct rc_cq *cq, struct rc_wc *out, int n)
{
	struct ibv_wc wc[RC_STASH];
	int got = ibv_poll_cq(cq->cq, n, wc);
	if (got < 0)
		return -EIO;
	for (int i = 0; i < got; i++)
		rc_copy_wc(&out[i], &wc[i]);
	return got;
}

static inline int rc_poll(struct rc_cq *cq, struct rc_wc *wc, int n)
{
	int done = 0;

	while (done < n && cq->n > 0) {
		wc[done++] = cq->stash[cq->head++];
		cq->n--;
	}
	while (done < n) {
		int want = n - done < RC_STASH ? n - done : RC_STASH;
		int got = rc_poll_device(cq, wc + done, want);
		if (got < 0)
			return done ? done : got;
		done += got;
		if (got < want)
			break;
	}
	return done;
}

static inline int rc_create_channel(struct ibv_context *ctx, struct rc_channel **channel)
{
	struct rc_channel *c = calloc(1, sizeof(*c));
	if (!c)
		return ENOMEM;
	errno = 0;
	c->channel = rc_api.ibv_create_comp_channel(ctx);
	int err = rc_errno(!c->channel);
	if (!err && (err = rc_nonblock(c->channel->fd)))
		rc_api.ibv_destroy_comp_channel(c->channel);
	if (err) {
		free(c);
		return err;
	}
	*channel = c;
	return 0;
}

static inline int rc_channel_fd(struct rc_channel *c) { return c->channel->fd; }

static inline int rc_destroy_channel(struct rc_channel *c)
{
	int fd = c->channel->fd;

	c->channel->fd = -1;
	int err = rc_code(rc_api.ibv_destroy_comp_channel(c->channel));
	if (err) {
		c->channel->fd = fd;
		return err;
	}
	free(c->cqs);
	free(c);
	return 0;
}

static inline int rc_attach_cq(struct rc_channel *c, struct rc_cq *cq)
{
	if (c->n == c->cap) {
		struct rc_cq **more = realloc(c->cqs, (c->cap + 4) * sizeof(*more));
		if (!more)
			return ENOMEM;
		c->cqs = more;
		c->cap += 4;
	}
	c->cqs[c->n++] = cq;
	return 0;
}

static inline void rc_detach_cq(struct rc_channel *c, struct rc_cq *cq)
{
	for (int i = 0; i < c->n; i++)
		if (c->cqs[i] == cq) {
			memmove(&c->cqs[i], &c->cqs[i + 1], (--c->n - i) * sizeof(*c->cqs));
			return;
		}
}

// rc_look polls every CQ into its stash.
static inline int rc_look(struct rc_channel *c)
{
	int found = 0;

	for (int i = 0; i < c->n; i++) {
		struct rc_cq *cq = c->cqs[i];
		if (cq->n == 0) {
			int got = rc_poll_device(cq, cq->stash, RC_STASH);
			if (got < 0)
				return got;
			cq->head = 0;
			cq->n = got;
		}
		found |= cq->n > 0;
	}
	return found;
}

static inline int64_t rc_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int rc_spin(struct rc_channel *c, int64_t ns)
{
	int64_t end = rc_now() + ns;

	do {
		for (int i = 0; i < 8; i++) { // the clock costs more than a look
			int found = rc_look(c);
			if (found)
				return found;
			if (__atomic_load_n(&c->interrupt, __ATOMIC_RELAXED))
				return 1;
		}
	} while (rc_now() < end);
	return 0;
}

static inline int rc_arm(struct rc_channel *c)
{
	for (int i = 0; i < c->n; i++) {
		struct rc_cq *cq = c->cqs[i];
		if (cq->armed)
			continue;
		int err = ibv_req_notify_cq(cq->cq, 0);
		if (err)
			return -rc_code(err);
		cq->armed = 1;
	}
	return rc_look(c);
}

// Every event is acknowledged where it is taken, so that destroying a CQ has nothing to wait for.
static inline int rc_drain(struct rc_channel *c)
{
	struct ibv_cq *cq;
	void *context;
	int events = 0;

	while (!rc_api.ibv_get_cq_event(c->channel, &cq, &context)) {
		((struct rc_cq *)context)->armed = 0;
		rc_api.ibv_ack_cq_events(cq, 1);
		events++;
	}
	return events || errno == EAGAIN ? events : -rc_errno(1);
}

static inline void rc_free_qp(struct rc_qp *q)
{
	free(q->send);
	free(q->send_sge);
	free(q->inline_data);
	free(q->recv);
	free(q->recv_sge);
	free(q);
}

static inline int rc_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct rc_cq *send_cq, struct rc_cq *recv_cq,
			       const struct rc_qp_cap *cap, int sig_all, struct rc_qp **qp)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq->cq,
		.recv_cq = recv_cq->cq,
		.cap = {
			.max_send_wr = cap->send_wr,
			.max_recv_wr = cap->recv_wr,
			.max_send_sge = cap->send_sge,
			.max_recv_sge = cap->recv_sge,
			.max_inline_data = cap->max_inline,
		},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = sig_all,
	};
	struct rc_qp *q = calloc(1, sizeof(*q));
	if (!q)
		return ENOMEM;
	errno = 0;
	if (rc_api.rdma_create_qp(id, pd, &attr)) {
		int err = rc_errno(1);
		free(q);
		return err;
	}
	q->qp = id->qp;
	q->num = id->qp->qp_num;
	q->cap.send_wr = attr.cap.max_send_wr;
	q->cap.recv_wr = attr.cap.max_recv_wr;
	q->cap.send_sge = attr.cap.max_send_sge;
	q->cap.recv_sge = attr.cap.max_recv_sge;
	q->cap.max_inline = attr.cap.max_inline_data;
	q->send = calloc(RC_BATCH, sizeof(*q->send));
	q->send_sge = calloc(RC_BATCH * q->cap.send_sge + 1, sizeof(*q->send_sge));
	q->inline_data = malloc(RC_BATCH * q->cap.max_inline + 1);
	q->recv = calloc(RC_BATCH, sizeof(*q->recv));
	q->recv_sge = calloc(RC_BATCH * q->cap.recv_sge + 1, sizeof(*q->recv_sge));
	if (!q->send || !q->send_sge || !q->inline_data || !q->recv || !q->recv_sge) {
		id->qp = NULL;
		rc_api.ibv_destroy_qp(q->qp);
		rc_free_qp(q);
		return ENOMEM;
	}
	*qp = q;
	return 0;
}

static inline void rc_detach_qp(struct rdma_cm_id *id) { id->qp = NULL; }

static inline int rc_destroy_qp(struct rc_qp *qp)
{
	int err = rc_code(rc_api.ibv_destroy_qp(qp->qp));
	if (!err)
		rc_free_qp(qp);
	return err;
}

// rc_post_result reads what a post returned. Two traps: -1 with errno, and siw's library, which forgets ENOMEM when part of a chain
// was taken but still points at the first request that was not.
static inline struct rc_posted rc_post_result(int err, int n, int bad)
{
	if (!err && bad < 0)
		return (struct rc_posted){n, 0};
	if (!err)
		err = ENOMEM;
	else if (err == -1 && errno)
		err = errno;
	return (struct rc_posted){bad < 0 ? 0 : bad, rc_code(err)};
}

static inline struct rc_posted rc_post_send(struct rc_qp *qp, int n)
{
	static const uint8_t opcodes[] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ,
	};
	struct ibv_sge inline_sge[RC_BATCH];
	struct ibv_send_wr wr[RC_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		const struct rc_send_wr *in = &qp->send[i];
		struct ibv_send_wr *w = &wr[i];

		w->wr_id = in->id;
		w->next = i + 1 < n ? w + 1 : NULL;
		w->opcode = opcodes[in->opcode];
		w->send_flags = (in->flags & 1 ? IBV_SEND_SIGNALED : 0) | (in->flags & 2 ? IBV_SEND_SOLICITED : 0) |
				(in->flags & 4 ? IBV_SEND_FENCE : 0);
		w->sg_list = (struct ibv_sge *)&qp->send_sge[i * qp->cap.send_sge];
		w->num_sge = in->num_sge;
		if (in->inline_len) {
			inline_sge[i].addr = (uintptr_t)&qp->inline_data[i * qp->cap.max_inline];
			inline_sge[i].length = in->inline_len;
			inline_sge[i].lkey = 0;
			w->send_flags |= IBV_SEND_INLINE;
			w->sg_list = &inline_sge[i];
			w->num_sge = 1;
		}
		w->imm_data = htonl(in->imm);
		w->wr.rdma.remote_addr = in->remote_addr;
		w->wr.rdma.rkey = in->rkey;
	}
	errno = 0;
	int err = ibv_post_send(qp->qp, wr, &bad);
	return rc_post_result(err, n, bad ? bad - wr : -1);
}

static inline struct rc_posted rc_post_recv(struct rc_qp *qp, int n)
{
	struct ibv_recv_wr wr[RC_BATCH], *bad = NULL;

	for (int i = 0; i < n; i++) {
		wr[i].wr_id = qp->recv[i].id;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = (struct ibv_sge *)&qp->recv_sge[i * qp->cap.recv_sge];
		wr[i].num_sge = qp->recv[i].num_sge;
	}
	errno = 0;
	int err = ibv_post_recv(qp->qp, wr, &bad);
	return rc_post_result(err, n, bad ? bad - wr : -1);
}

static inline int rc_query_qp(struct rc_qp *qp, struct rc_qp_attr *out)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	int mask = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		   IBV_QP_MIN_RNR_TIMER | IBV_QP_DEST_QPN | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN;

	memset(&a, 0, sizeof(a));
	int err = rc_code(rc_api.ibv_query_qp(qp->qp, &a, mask, &init));
	if (err)
		return err;
	out->state = a.qp_state;
	out->path_mtu = rc_mtu_bytes(a.path_mtu);
	out->timeout = a.timeout;
	out->retry_cnt = a.retry_cnt;
	out->rnr_retry = a.rnr_retry;
	out->min_rnr_timer = a.min_rnr_timer;
	out->dest_qp_num = a.dest_qp_num;
	out->sq_psn = a.sq_psn;
	out->rq_psn = a.rq_psn;
	return 0;
}

static inline int rc_set_qp_state(struct rc_qp *qp, int state)
{
	struct ibv_qp_attr a = {.qp_state = state};
	return rc_code(rc_api.ibv_modify_qp(qp->qp, &a, IBV_QP_STATE));
}

static inline int rc_set_min_rnr_timer(struct rc_qp *qp, int timer)
{
	struct ibv_qp_attr a = {.min_rnr_timer = timer};
	return rc_code(rc_api.ibv_modify_qp(qp->qp, &a, IBV_QP_MIN_RNR_TIMER));
}
