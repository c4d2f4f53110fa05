// Queue pairs.

static inline void rc_free_qp(struct rc_qp *q)
{
	free(q->send);
	free(q->send_sge);
	free(q->inline_data);
	rc_free_rq(&q->rq);
	free(q);
}

// rc_make_qp has the library make the QP. The sizes that were granted are in attr then.
static inline struct ibv_qp *rc_make_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	errno = 0;
	if (!id)
		return rc_api.ibv_create_qp(pd, attr);
	return rc_api.rdma_create_qp(id, pd, attr) ? NULL : id->qp;
}

static inline int rc_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, const struct rc_qp_init *init, struct rc_qp **qp)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
	struct ibv_qp_init_attr attr = {
		.send_cq = init->send_cq->cq,
		.recv_cq = init->recv_cq->cq,
		.srq = init->srq ? init->srq->rq.srq : NULL,
		.cap = {
			.max_send_wr = init->cap.send_wr,
			.max_recv_wr = init->cap.recv_wr,
			.max_send_sge = init->cap.send_sge,
			.max_recv_sge = init->cap.recv_sge,
			.max_inline_data = init->cap.max_inline,
		},
		.qp_type = types[init->type],
		.sq_sig_all = init->sig_all,
	};
	struct rc_qp *q = calloc(1, sizeof(*q));
	if (!q)
		return ENOMEM;
	q->qp = rc_make_qp(id, pd, &attr);
	if (!q->qp) {
		int err = rc_errno(1);
		free(q);
		return err;
	}
	q->num = q->qp->qp_num;
	q->ud = attr.qp_type == IBV_QPT_UD;
	q->cap.send_wr = attr.cap.max_send_wr;
	q->cap.recv_wr = init->srq ? 0 : attr.cap.max_recv_wr;
	q->cap.send_sge = attr.cap.max_send_sge;
	q->cap.recv_sge = init->srq ? 0 : attr.cap.max_recv_sge;
	q->cap.max_inline = attr.cap.max_inline_data;
	q->send = calloc(RC_BATCH, sizeof(*q->send));
	q->send_sge = calloc(RC_BATCH * q->cap.send_sge + 1, sizeof(*q->send_sge));
	q->inline_data = malloc(RC_BATCH * q->cap.max_inline + 1);
	q->rq.qp = q->qp;
	int err = init->srq ? 0 : rc_init_rq(&q->rq, q->cap.recv_sge);
	if (err || !q->send || !q->send_sge || !q->inline_data) {
		if (id)
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

static inline int rc_query_qp(struct rc_qp *qp, struct rc_qp_attr *out)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;
	int mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY | IBV_QP_PATH_MTU |
		   IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		   IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;

	memset(&a, 0, sizeof(a));
	int err = rc_code(rc_api.ibv_query_qp(qp->qp, &a, mask, &init));
	if (err)
		return err;
	*out = (struct rc_qp_attr){
		.state = a.qp_state,
		.access = a.qp_access_flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
		.port = a.port_num,
		.pkey_index = a.pkey_index,
		.path_mtu = rc_mtu_bytes(a.path_mtu),
		.timeout = a.timeout,
		.retry_cnt = a.retry_cnt,
		.rnr_retry = a.rnr_retry,
		.min_rnr_timer = a.min_rnr_timer,
		.max_rd_atomic = a.max_rd_atomic,
		.max_dest_rd_atomic = a.max_dest_rd_atomic,
		.qkey = a.qkey,
		.dest_qp_num = a.dest_qp_num,
		.rq_psn = a.rq_psn,
		.sq_psn = a.sq_psn,
	};
	if (a.ah_attr.port_num) // 0: no way yet
		out->ah = rc_from_ah_attr(&a.ah_attr);
	return 0;
}

static inline int rc_modify_qp(struct rc_qp *qp, const struct rc_qp_attr *in, int mask)
{
	struct ibv_qp_attr a = {
		.qp_state = in->state,
		.qp_access_flags = in->access,
		.port_num = in->port,
		.pkey_index = in->pkey_index,
		.qkey = in->qkey,
		.path_mtu = rc_mtu(in->path_mtu),
		.ah_attr = rc_to_ah_attr(&in->ah),
		.dest_qp_num = in->dest_qp_num,
		.rq_psn = in->rq_psn,
		.sq_psn = in->sq_psn,
		.timeout = in->timeout,
		.retry_cnt = in->retry_cnt,
		.rnr_retry = in->rnr_retry,
		.min_rnr_timer = in->min_rnr_timer,
		.max_rd_atomic = in->max_rd_atomic,
		.max_dest_rd_atomic = in->max_dest_rd_atomic,
		.en_sqd_async_notify = in->notify_drained,
	};
	return rc_code(rc_api.ibv_modify_qp(qp->qp, &a, mask));
}

// Go's table of masks (qpattr.go) has these values.
_Static_assert(IBV_QP_STATE == 1 && IBV_QP_EN_SQD_ASYNC_NOTIFY == 4 && IBV_QP_ACCESS_FLAGS == 8 && IBV_QP_PKEY_INDEX == 16, "mask");
_Static_assert(IBV_QP_PORT == 1 << 5 && IBV_QP_QKEY == 1 << 6 && IBV_QP_AV == 1 << 7 && IBV_QP_PATH_MTU == 1 << 8, "mask");
_Static_assert(IBV_QP_TIMEOUT == 1 << 9 && IBV_QP_RETRY_CNT == 1 << 10 && IBV_QP_RNR_RETRY == 1 << 11, "mask");
_Static_assert(IBV_QP_RQ_PSN == 1 << 12 && IBV_QP_MAX_QP_RD_ATOMIC == 1 << 13 && IBV_QP_MIN_RNR_TIMER == 1 << 15, "mask");
_Static_assert(IBV_QP_SQ_PSN == 1 << 16 && IBV_QP_MAX_DEST_RD_ATOMIC == 1 << 17 && IBV_QP_DEST_QPN == 1 << 20, "mask");
