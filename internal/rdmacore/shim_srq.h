// Receive queues, and those that are shared.

static inline int rc_init_rq(struct rc_rq *rq, int max_sge)
{
	rq->max_sge = max_sge;
	rq->wr = calloc(RC_BATCH, sizeof(*rq->wr));
	rq->sge = calloc(RC_BATCH * max_sge + 1, sizeof(*rq->sge));
	return rq->wr && rq->sge ? 0 : ENOMEM;
}

static inline void rc_free_rq(struct rc_rq *rq)
{
	free(rq->wr);
	free(rq->sge);
}

static inline int rc_create_srq(struct ibv_pd *pd, struct rc_srq_attr *attr, uint64_t handle, struct rc_srq **srq)
{
	struct rc_srq *s = calloc(1, sizeof(*s));
	struct ibv_srq_init_attr init = {
		.srq_context = s,
		.attr = {.max_wr = attr->max_wr, .max_sge = attr->max_sge},
	};
	if (!s)
		return ENOMEM;
	s->handle = handle;
	errno = 0;
	s->rq.srq = rc_api.ibv_create_srq(pd, &init);
	if (!s->rq.srq) {
		int err = rc_errno(1);
		free(s);
		return err;
	}
	attr->max_wr = init.attr.max_wr;
	attr->max_sge = init.attr.max_sge;
	if (rc_init_rq(&s->rq, attr->max_sge)) {
		rc_api.ibv_destroy_srq(s->rq.srq);
		rc_free_rq(&s->rq);
		free(s);
		return ENOMEM;
	}
	*srq = s;
	return 0;
}

static inline int rc_destroy_srq(struct rc_srq *srq)
{
	int err = rc_code(rc_api.ibv_destroy_srq(srq->rq.srq));
	if (err)
		return err;
	rc_free_rq(&srq->rq);
	free(srq);
	return 0;
}

static inline int rc_query_srq(struct rc_srq *srq, struct rc_srq_attr *out)
{
	struct ibv_srq_attr a = {0};
	int err = rc_code(rc_api.ibv_query_srq(srq->rq.srq, &a));
	if (err)
		return err;
	out->max_wr = a.max_wr;
	out->max_sge = a.max_sge;
	out->limit = a.srq_limit;
	return 0;
}

static inline int rc_set_srq_limit(struct rc_srq *srq, int limit)
{
	struct ibv_srq_attr a = {.srq_limit = limit};
	return rc_code(rc_api.ibv_modify_srq(srq->rq.srq, &a, IBV_SRQ_LIMIT));
}
