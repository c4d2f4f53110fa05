// Queue pairs.

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
		   IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN;

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
	out->max_rd_atomic = a.max_rd_atomic;
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
