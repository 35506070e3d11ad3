/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward walk: who held the path at every instant of [stop, t].
 *
 * Input is one sorted time line per thread (waits, queue reads, named spans, page faults) as
 * plain columns; output is a list of segments, newest first, that tile the interval exactly.
 * What each rule is for stands in the design notes of the walk module; the code only applies
 * them. No allocation but the growing output, no recursion, bounded work per emitted segment.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum wait_class {
	W_PREEMPTED = 0, /* runnable all along, preempted or throttled; peer: who ran instead */
	W_GIL = 1,	 /* interpreter lock; peer: its holder, -1 unknown */
	W_LOCK = 2,	 /* lock: explained by its holder, then back to the waiter */
	W_MESSAGE = 3,	 /* woken by a traced thread: the path moves there */
	W_LEAF_IDLE = 4, /* timer, network, external, no wake: nothing further to follow */
	W_LEAF_WORK = 5, /* disk, interrupt, fault: part of the thread's own work */
};

/* Categories that the walk itself assigns; the leaf classes carry theirs in w_leaf. */
enum category {
	C_CPU = 0,
	C_GIL = 1,
	C_SPIN_HANDOFF = 4,
	C_RUN_QUEUE = 5,
	C_PAGE_FAULT = 9,
	C_UNOBSERVED = 14,
	C_UNEXPLAINED = 15,
	C_GPU = 16,
	C_SYNC_RETURN = 20,
	C_HOST = 21,
};

enum evidence {
	E_NONE = 0,
	E_WAIT = 1,
	E_QUEUE = 2,
	E_FAULT = 3,
	E_GPU = 4,
	E_SYNC = 5,
	E_LOST = 6, /* that a record may be missing */
};
enum frame_mode { F_CLIP = 0, F_RETURN = 1, F_GIL = 2, F_GIL_INFERRED = 3 };

#define MAX_FRAMES 64
#define MAX_IDLE_HOPS 64
#define CLOSE_NS \
	200000 /* predecessors this close: the path could as well have gone the other way */

struct walk_model {
	int64_t n_threads;
	/* waits, by thread, sorted by start, not overlapping */
	const int64_t *w_off, *w_start, *w_end, *w_wake;
	const int32_t *w_peer;
	const uint8_t *w_class, *w_leaf;
	/* queue reads, by thread: waiting from start to ready for a message visible at w_sent */
	const int64_t *q_off, *q_start, *q_ready, *q_sent;
	const int32_t *q_peer;
	/* named spans, by thread, flattened: sorted, not overlapping, innermost wins */
	const int64_t *s_off, *s_start, *s_end;
	/* page faults, by thread */
	const int64_t *f_off, *f_start, *f_end;
	/* what is known of each thread at all */
	const int64_t *t_first, *t_last;
	/* threads of each process, to find who was on a CPU */
	const int32_t *t_proc;
	const int64_t *p_off;
	const int32_t *p_threads;
	/* by process, merged: windows in which records were lost; being on CPU proves nothing there
	 */
	const int64_t *l_off, *l_start, *l_end;
	/* by thread: whether its waits were recorded; without, being between waits says nothing */
	const uint8_t *t_host;
	/* synchronisations, by thread, sorted, not overlapping; y_op: operation waited for, -1 none
	 */
	const int64_t *y_off, *y_start, *y_end, *y_op;
	/* Operations of devices, by stream, sorted by start; stream s is actor n_threads + s. What
	 * let each go: an operation (g_pred) or a launch on a thread; the actor g_to, -1 unknown,
	 * which did so at g_land; the time from there to its start is of category g_gap. */
	const int64_t *g_off, *g_start, *g_end, *g_pred, *g_land, *g_margin;
	const int32_t *g_actor, *g_to;
	const uint8_t *g_gap;
	/* by thread: who created it at t_first, -1 unknown or known since before */
	const int32_t *t_from;
};

struct walk_seg {
	int64_t start, end;
	int64_t evidence; /* row of the wait, queue read, fault, operation or sync; -1 none */
	int64_t span;	  /* row of the flattened span; -1 none */
	int64_t slack;	  /* margin over the second latest predecessor; -1 unknown */
	int64_t held_by;  /* row of the wait for a lock that the actor held; -1 none */
	int32_t actor;
	int32_t related; /* who ran instead; -1 none */
	int32_t held;	 /* who waited for that lock; -1 none */
	int32_t leg;
	int32_t phase; /* index of the cut interval */
	uint8_t category, evidence_kind;
	uint8_t inferred; /* the actor was chosen because it was on a CPU, not because it was named
			   */
	uint8_t pad;
};

struct walk_hop {
	int64_t start, end; /* the part of the wait that lies on the path */
	int64_t evidence;
	int32_t from, to;
	int32_t leg;
	uint8_t evidence_kind, mode, pad[2];
};

struct walk_out {
	struct walk_seg *segs;
	struct walk_hop *hops;
	int64_t n_segs, cap_segs, n_hops, cap_hops;
	int64_t failed;
};

struct frame {
	int64_t floor;
	int64_t hop; /* its wait among the hops */
	int32_t tid, mode;
};

struct walker {
	const struct walk_model *m;
	struct walk_out *out;
	const int64_t *cuts; /* ascending; phase i is (cuts[i], cuts[i + 1]] */
	int64_t n_cuts;
	int64_t t, stop;
	int64_t op; /* where the path is on a stream: the operation; -1 the last that began before t
		     */
	int32_t tid, leg;
	struct frame frames[MAX_FRAMES];
	int n_frames;
	int64_t slack;
};

static int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Index of the last value < t in v[lo, hi); lo - 1 if none. */
static int64_t last_before(const int64_t *v, int64_t lo, int64_t hi, int64_t t)
{
	while (lo < hi) {
		int64_t mid = lo + (hi - lo) / 2;

		if (v[mid] < t)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

static void push_seg(struct walker *w, const struct walk_seg *seg)
{
	struct walk_out *o = w->out;

	if (seg->end <= seg->start || o->failed)
		return;
	if (o->n_segs == o->cap_segs) {
		int64_t cap = o->cap_segs ? 2 * o->cap_segs : 1024;
		void *p = realloc(o->segs, (size_t)cap * sizeof(*o->segs));

		if (!p) {
			o->failed = 1;
			return;
		}
		o->segs = p;
		o->cap_segs = cap;
	}
	o->segs[o->n_segs++] = *seg;
}

static void push_hop(struct walker *w, int64_t start, int64_t end, int32_t from, int32_t to,
		     int kind, int64_t evidence, int mode)
{
	struct walk_out *o = w->out;
	struct walk_hop *h;

	if (o->failed)
		return;
	if (o->n_hops == o->cap_hops) {
		int64_t cap = o->cap_hops ? 2 * o->cap_hops : 256;
		void *p = realloc(o->hops, (size_t)cap * sizeof(*o->hops));

		if (!p) {
			o->failed = 1;
			return;
		}
		o->hops = p;
		o->cap_hops = cap;
	}
	h = &o->hops[o->n_hops++];
	memset(h, 0, sizeof(*h));
	h->start = min64(max64(start, w->stop), end);
	h->end = end;
	h->evidence = evidence;
	h->from = from;
	h->to = to;
	h->leg = w->leg;
	h->evidence_kind = (uint8_t)kind;
	h->mode = (uint8_t)mode;
}

/* One segment, split at the phase cuts. */
static void emit_phases(struct walker *w, struct walk_seg *seg)
{
	int64_t lo = seg->start, hi = seg->end;

	while (hi > lo) {
		int64_t k = last_before(w->cuts, 0, w->n_cuts, hi);
		int64_t a = k >= 0 ? max64(lo, w->cuts[k]) : lo;

		seg->phase = (int32_t)k;
		seg->start = a;
		seg->end = hi;
		push_seg(w, seg);
		hi = a;
	}
}

/* Split a stretch on CPU at the thread's page faults. */
static void emit_faults(struct walker *w, struct walk_seg *seg)
{
	const struct walk_model *m = w->m;
	int64_t lo = seg->start, hi = seg->end, base = m->f_off[seg->actor];
	int64_t f = last_before(m->f_start, base, m->f_off[seg->actor + 1], hi);
	struct walk_seg piece;

	while (hi > lo) {
		int64_t a = lo;

		piece = *seg;
		piece.end = hi;
		if (f >= base && m->f_end[f] > lo) {
			if (m->f_end[f] < hi) {
				a = m->f_end[f];
			} else {
				a = max64(lo, m->f_start[f]);
				piece.category = C_PAGE_FAULT;
				piece.evidence_kind = E_FAULT;
				piece.evidence = f;
				f--;
			}
		}
		piece.start = a;
		emit_phases(w, &piece);
		hi = a;
	}
}

/* Split a stretch on CPU at the thread's named spans. */
static void emit_cpu(struct walker *w, struct walk_seg *seg)
{
	const struct walk_model *m = w->m;
	int64_t lo = seg->start, hi = seg->end, base = m->s_off[seg->actor];
	int64_t s = last_before(m->s_start, base, m->s_off[seg->actor + 1], hi);
	struct walk_seg piece;

	while (hi > lo) {
		int64_t a = lo;

		piece = *seg;
		piece.end = hi;
		if (s >= base && m->s_end[s] > lo) {
			if (m->s_end[s] < hi) {
				a = m->s_end[s];
			} else {
				a = max64(lo, m->s_start[s]);
				piece.span = s;
				s--;
			}
		}
		piece.start = a;
		emit_faults(w, &piece);
		hi = a;
	}
}

static int64_t span_at(const struct walk_model *m, int32_t tid, int64_t t)
{
	int64_t base, s;

	if (tid < 0 || tid >= m->n_threads)
		return -1;
	base = m->s_off[tid];
	s = last_before(m->s_start, base, m->s_off[tid + 1], t);
	return s >= base && m->s_end[s] >= t ? s : -1;
}

static int gil_active(const struct walker *w)
{
	int i;

	for (i = w->n_frames - 1; i >= 0; i--)
		if (w->frames[i].mode >= F_GIL)
			return w->frames[i].mode;
	return 0;
}

/* The latest block time at which the path returns to a waiter; stop if there is none. */
static int64_t floor_of(const struct walker *w, int *at)
{
	int64_t floor = w->stop;
	int i;

	*at = -1;
	for (i = 0; i < w->n_frames; i++)
		if (w->frames[i].mode != F_CLIP && w->frames[i].floor >= floor) {
			floor = w->frames[i].floor;
			*at = i;
		}
	return floor;
}

/* The innermost wait for a lock that the current thread holds, as a frame; -1 none. */
static int holding(const struct walker *w)
{
	int i;

	for (i = w->n_frames - 1; i >= 0; i--)
		if (w->frames[i].mode != F_CLIP && w->frames[i].tid != w->tid)
			return i;
	return -1;
}

/*
 * Where records were lost, a stretch on CPU is known only from the last loss on: the record of a
 * wait is written when it ends, so a lost one may have begun at any time since the wait before.
 */
static int64_t known_from(const struct walker *w, int64_t lo)
{
	const struct walk_model *m = w->m;
	int32_t proc = m->t_proc[w->tid];
	int64_t base = m->l_off[proc];
	int64_t k = last_before(m->l_start, base, m->l_off[proc + 1], w->t);

	return k >= base && m->l_end[k] > lo ? min64(m->l_end[k], w->t) : lo;
}

/* Take [lo, t] of the current thread as one state, and move t down to lo. */
static void take(struct walker *w, int category, int64_t lo, int32_t related, int kind,
		 int64_t evidence)
{
	struct walk_seg seg;
	int gil = gil_active(w), at = holding(w);

	memset(&seg, 0, sizeof(seg));
	seg.end = w->t;
	seg.actor = w->tid;
	seg.related = related;
	seg.leg = w->leg;
	seg.slack = w->slack;
	seg.evidence = evidence;
	seg.evidence_kind = (uint8_t)kind;
	seg.category = (uint8_t)category;
	seg.span = -1;
	seg.held = at >= 0 ? w->frames[at].tid : -1;
	seg.held_by = at >= 0 ? w->out->hops[w->frames[at].hop].evidence : -1;
	seg.inferred = gil == F_GIL_INFERRED;
	w->slack = -1;
	seg.start = lo;
	if (category == C_CPU) {
		/* its holder ran: that is the wait for the lock; a holder without a CPU is not */
		if (gil)
			seg.category = C_GIL;
		else if (w->m->t_host[w->tid])
			seg.category = C_HOST;
		emit_cpu(w, &seg);
	} else {
		seg.span = span_at(w->m, w->tid, w->t);
		emit_phases(w, &seg);
	}
	w->t = lo;
}

/*
 * Take [lo, t] of the current thread as a state that shows in no wait being recorded. Before a
 * wait that may have been lost nobody knows where the path was, but that it came back to whoever
 * waited for a lock.
 */
static void take_awake(struct walker *w, int category, int64_t lo, int32_t related, int kind,
		       int64_t evidence)
{
	int64_t known = known_from(w, lo);
	int at;

	take(w, category, known, related, kind, evidence);
	if (known > lo)
		take(w, C_UNOBSERVED, floor_of(w, &at), -1, E_LOST, -1);
}

/* Only n waits are left to come back to; of the others no more is on the path than up to t. */
static void drop_to(struct walker *w, int n)
{
	while (w->n_frames > n) {
		struct walk_hop *hop = w->out->hops + w->frames[--w->n_frames].hop;

		hop->start = min64(max64(hop->start, w->t), hop->end);
	}
}

/* Frames whose waiter was still running at t say nothing any more; lock waits return here. */
static int64_t settle(struct walker *w)
{
	for (;;) {
		int at;
		int64_t floor = floor_of(w, &at);

		if (at >= 0 && floor >= w->t) {
			w->tid = w->frames[at].tid;
			drop_to(w, at);
			continue;
		}
		while (w->n_frames && w->frames[w->n_frames - 1].mode == F_CLIP &&
		       w->frames[w->n_frames - 1].floor >= w->t)
			drop_to(w, w->n_frames - 1);
		return floor;
	}
}

/* Room for one more frame: the oldest clip matters least; a wait that has to be returned to stays.
 */
static int make_room(struct walker *w)
{
	int i = 0;

	if (w->n_frames < MAX_FRAMES)
		return 1;
	while (i < w->n_frames && w->frames[i].mode != F_CLIP)
		i++;
	if (i == w->n_frames)
		return 0;
	memmove(w->frames + i, w->frames + i + 1,
		sizeof(w->frames[0]) * (size_t)(w->n_frames - i - 1));
	w->n_frames--;
	return 1;
}

static int push_frame(struct walker *w, int64_t floor, int mode)
{
	if (!make_room(w))
		return 0;
	w->frames[w->n_frames].floor = floor;
	w->frames[w->n_frames].hop = w->out->n_hops;
	w->frames[w->n_frames].tid = w->tid;
	w->frames[w->n_frames].mode = mode;
	w->n_frames++;
	return 1;
}

/*
 * A thread of the same process that was on a CPU just before t, other than the current; where
 * there is none, one that had lost its CPU to somebody else: it ran, and did not go to sleep.
 */
static int32_t running_sibling(const struct walker *w)
{
	const struct walk_model *m = w->m;
	int32_t proc = m->t_proc[w->tid], best = -1, ready = -1;
	int64_t i, best_since = INT64_MAX, ready_since = INT64_MAX;

	if (proc < 0)
		return -1;
	for (i = m->p_off[proc]; i < m->p_off[proc + 1]; i++) {
		int32_t x = m->p_threads[i];
		int64_t base = m->w_off[x], k, since;

		if (x == w->tid || m->t_first[x] >= w->t || m->t_last[x] < w->t)
			continue;
		k = last_before(m->w_start, base, m->w_off[x + 1], w->t);
		if (k < base)
			continue;
		if (m->w_end[k] >= w->t) {
			if (m->w_class[k] == W_PREEMPTED && m->w_start[k] < ready_since) {
				ready_since = m->w_start[k];
				ready = x;
			}
			continue;
		}
		since = m->w_end[k];
		if (since < best_since) {
			best_since = since;
			best = x;
		}
	}
	return best >= 0 ? best : ready;
}

/*
 * A leaf that began before a waiter blocked explains only that wait: go back to the waiter. Of
 * several waiters the one that blocked last is met first.
 */
static void leaf(struct walker *w, int64_t lo, int64_t i, int clip)
{
	const struct walk_model *m = w->m;
	int best = -1, k;

	for (k = 0; clip && k < w->n_frames; k++)
		if (w->frames[k].mode == F_CLIP && w->frames[k].floor > lo &&
		    w->frames[k].floor < w->t &&
		    (best < 0 || w->frames[k].floor >= w->frames[best].floor))
			best = k;
	if (best >= 0)
		lo = w->frames[best].floor;
	take(w, m->w_leaf[i], lo, m->w_peer[i], E_WAIT, i);
	if (best >= 0) {
		w->tid = w->frames[best].tid;
		drop_to(w, best);
	}
}

/* The path leaves a waiter for the one it waited for; 0 if there are too many to come back to. */
static int hop_to(struct walker *w, int32_t to, int64_t start, int kind, int64_t evidence, int mode)
{
	int32_t from = w->tid;

	if (!push_frame(w, start, mode))
		return 0;
	push_hop(w, start, w->t, from, to, kind, evidence, mode);
	w->slack = (uint64_t)w->t - (uint64_t)start < CLOSE_NS ? w->t - start : -1;
	w->tid = to;
	return 1;
}

/*
 * Within a wait for the interpreter lock the path goes on to another holder. Where nobody had it
 * in between, that one held it when the wait ended.
 */
static void next_holder(struct walker *w, int32_t to, int mode)
{
	int i = w->n_frames - 1;
	struct walk_hop *hop;

	while (i > 0 && w->frames[i].mode < F_GIL)
		i--;
	hop = w->out->hops + w->frames[i].hop;
	w->frames[i].mode = mode;
	if (hop->end == w->t) {
		hop->to = to;
		hop->mode = (uint8_t)mode;
	}
	w->tid = to;
}

/* Somebody of the process who was on a CPU takes over as the holder, as an inference. */
static int infer_holder(struct walker *w, int *idle)
{
	int32_t other = running_sibling(w);

	if (other < 0 || *idle >= MAX_IDLE_HOPS / 2)
		return 0;
	next_holder(w, other, F_GIL_INFERRED);
	return 1;
}

/*
 * Blocked on the interpreter lock: its holder has the path until the waiter blocked, or until the
 * moment from which it mattered.
 */
static void gil_wait(struct walker *w, int64_t i, int64_t start, int64_t floor, int *idle)
{
	const struct walk_model *m = w->m;
	int32_t holder = m->w_peer[i];
	int64_t lo = max64(start, floor);
	int mode = F_GIL;

	if (gil_active(w)) {
		/* The holder waits for the lock too: the next holder, in the same frame. Where
		 * waits that timed out name each other, it was neither. */
		if (holder >= 0 && holder != w->tid && *idle < MAX_IDLE_HOPS / 4)
			next_holder(w, holder, gil_active(w));
		else if (!infer_holder(w, idle))
			take(w, C_UNEXPLAINED, lo, -1, E_WAIT, i);
		return;
	}
	if (holder < 0 || holder == w->tid) {
		holder = running_sibling(w);
		mode = F_GIL_INFERRED;
	}
	if (holder < 0 || !hop_to(w, holder, start, E_WAIT, i, mode))
		take(w, C_UNEXPLAINED, lo, -1, E_WAIT, i);
}

static void in_wait(struct walker *w, int64_t i, int64_t floor, int *idle)
{
	const struct walk_model *m = w->m;
	int64_t a = m->w_start[i], wake = m->w_wake[i], lo = max64(a, floor);
	int32_t peer = m->w_peer[i];
	int cls = m->w_class[i];

	if (cls == W_PREEMPTED) {
		take(w, m->w_leaf[i], lo, peer, E_WAIT, i);
		return;
	}
	if (wake > 0 && w->t > wake) {
		take(w, C_RUN_QUEUE, max64(wake, lo), -1, E_WAIT, i);
		return;
	}
	if (cls == W_GIL) {
		gil_wait(w, i, a, floor, idle);
		return;
	}
	if (gil_active(w)) {
		/* whoever sleeps does not hold the lock: somebody on a CPU did */
		if (!infer_holder(w, idle))
			take(w, C_UNEXPLAINED, lo, -1, E_WAIT, i);
		return;
	}
	if ((cls == W_LOCK || cls == W_MESSAGE) && peer >= 0 && peer != w->tid) {
		if (hop_to(w, peer, a, E_WAIT, i, cls == W_LOCK ? F_RETURN : F_CLIP))
			return;
	}
	leaf(w, lo, i, cls != W_LEAF_WORK);
}

/* Between the message being visible and the reader having seen it. */
static void handoff(struct walker *w, int64_t sent, int64_t q, int64_t i, int64_t floor, int *idle)
{
	const struct walk_model *m = w->m;
	int64_t lo = max64(sent, floor), base = m->w_off[w->tid];

	if (i >= base && w->t <= m->w_end[i]) {
		int64_t a = max64(lo, m->w_start[i]), wake = m->w_wake[i];

		if (m->w_class[i] == W_PREEMPTED)
			take(w, m->w_leaf[i], a, m->w_peer[i], E_WAIT, i);
		else if (wake > 0 && w->t > wake)
			take(w, C_RUN_QUEUE, max64(a, wake), -1, E_WAIT, i);
		else if (m->w_class[i] == W_GIL)
			/* it would have seen the message, had it had the interpreter */
			gil_wait(w, i, a, floor, idle);
		else
			take(w, C_SPIN_HANDOFF, a, m->q_peer[q], E_QUEUE, q);
		return;
	}
	if (i >= base)
		lo = max64(lo, m->w_end[i]);
	take_awake(w, C_SPIN_HANDOFF, lo, m->q_peer[q], E_QUEUE, q);
}

/* Inside a queue read; returns 0 if the message had been there before the read began. */
static int in_queue_read(struct walker *w, int64_t q, int64_t i, int64_t floor, int *idle)
{
	const struct walk_model *m = w->m;
	int64_t start = m->q_start[q], sent = m->q_sent[q];
	int32_t writer = m->q_peer[q];

	if (writer < 0) {
		/* who it polls for is unknown; its own waits in between still say what they say */
		if (i >= m->w_off[w->tid] && w->t <= m->w_end[i])
			return 0;
		if (i >= m->w_off[w->tid])
			start = max64(start, m->w_end[i]);
		take(w, C_UNEXPLAINED, max64(start, floor), -1, E_QUEUE, q);
		return 1;
	}
	if (sent <= start) {
		if ((uint64_t)start - (uint64_t)sent < CLOSE_NS)
			w->slack = start - sent;
		return 0;
	}
	if (w->t > sent && max64(sent, floor) < w->t) {
		handoff(w, sent, q, i, floor, idle);
		return 1;
	}
	if (!hop_to(w, writer, start, E_QUEUE, q, F_CLIP))
		take(w, C_UNEXPLAINED, max64(start, floor), -1, E_QUEUE, q);
	return 1;
}

/*
 * On a stream: its operation, then whatever let that go. Operations follow each other in a strict
 * order, so the loop ends.
 */
static void in_stream(struct walker *w, int64_t floor)
{
	const struct walk_model *m = w->m;
	int64_t o = w->op;

	if (o < 0) {
		int32_t s = w->tid - (int32_t)m->n_threads;

		o = last_before(m->g_start, m->g_off[s], m->g_off[s + 1], w->t);
		if (o < m->g_off[s]) {
			take(w, C_UNOBSERVED, floor, -1, E_NONE, -1);
			return;
		}
	}
	while (w->t > floor) {
		int64_t land = m->g_land[o];

		w->op = o;
		if (w->t > m->g_end[o])
			take(w, C_UNEXPLAINED, max64(m->g_end[o], floor), -1, E_NONE, -1);
		if (w->t > m->g_start[o])
			take(w, C_GPU, max64(m->g_start[o], floor), -1, E_GPU, o);
		if (m->g_to[o] < 0)
			land = floor;
		if (w->t > max64(land, floor))
			take(w, m->g_gap[o], max64(land, floor), -1, E_GPU, o);
		if (w->t <= floor)
			return;
		w->slack = m->g_margin[o];
		w->tid = m->g_to[o];
		o = w->op = m->g_pred[o];
		if (o < 0)
			return;
	}
}

/* In a synchronisation that waited for a device: the path moves to the operation. */
static int in_sync(struct walker *w, int64_t y, int64_t i, int64_t floor)
{
	const struct walk_model *m = w->m;
	int64_t op = m->y_op[y], lo, end;

	if (op < 0 || m->g_end[op] <= m->y_start[y])
		return 0;
	/* a call that launches what it waits for: until that began, the time is the call's own */
	if (w->t <= m->g_start[op] && m->g_to[op] == w->tid)
		return 0;
	/* clocks of devices are not exact: one that seems to end after the return ended with it */
	end = min64(m->g_end[op], m->y_end[y]);
	if (w->t > end) {
		int64_t base = m->w_off[w->tid];

		lo = max64(end, floor);
		/* what the thread's own waits say of its way back to a CPU says more */
		if (i >= base && w->t <= m->w_end[i] && m->w_class[i] == W_PREEMPTED)
			take(w, m->w_leaf[i], max64(lo, m->w_start[i]), m->w_peer[i], E_WAIT, i);
		else if (i >= base && w->t <= m->w_end[i] && m->w_wake[i] > 0 &&
			 w->t > m->w_wake[i])
			take(w, C_RUN_QUEUE, max64(lo, m->w_wake[i]), -1, E_WAIT, i);
		else if (i >= base && w->t <= m->w_end[i])
			take(w, C_SYNC_RETURN, lo, -1, E_SYNC, y);
		else
			take_awake(w, C_SYNC_RETURN, i >= base ? max64(lo, m->w_end[i]) : lo, -1,
				   E_SYNC, y);
		return 1;
	}
	if (!hop_to(w, m->g_actor[op], m->y_start[y], E_SYNC, y, F_CLIP))
		return 0;
	w->op = op;
	return 1;
}

static void walk_leg(struct walker *w)
{
	const struct walk_model *m = w->m;
	int64_t before = w->t;
	int idle = 0;

	while (w->t > w->stop && !w->out->failed) {
		int64_t floor = settle(w), base, q, i, y, lo;

		if (w->t < before) {
			before = w->t;
			idle = 0;
		} else if (idle++ > MAX_IDLE_HOPS && w->tid < m->n_threads) {
			/* peers that name each other: say so, and go on where one began */
			base = m->w_off[w->tid];
			i = last_before(m->w_start, base, m->w_off[w->tid + 1], w->t);
			take(w, C_UNEXPLAINED, max64(floor, i >= base ? m->w_start[i] : floor), -1,
			     E_NONE, -1);
			continue;
		}
		if (w->tid >= m->n_threads) {
			in_stream(w, floor);
			continue;
		}
		if (w->tid >= 0 && w->t <= m->t_first[w->tid] && m->t_from[w->tid] >= 0) {
			w->tid = m->t_from[w->tid];
			w->slack = -1;
			continue;
		}
		if (w->tid < 0 || w->t > m->t_last[w->tid] || w->t <= m->t_first[w->tid]) {
			lo = floor;
			if (w->tid >= 0 && w->t > m->t_last[w->tid])
				lo = max64(floor, min64(w->t - 1, m->t_last[w->tid]));
			take(w, C_UNOBSERVED, lo, -1, E_NONE, -1);
			continue;
		}
		base = m->w_off[w->tid];
		i = last_before(m->w_start, base, m->w_off[w->tid + 1], w->t);
		q = last_before(m->q_start, m->q_off[w->tid], m->q_off[w->tid + 1], w->t);
		if (q >= m->q_off[w->tid] && w->t <= m->q_ready[q] && !gil_active(w))
			if (in_queue_read(w, q, i, floor, &idle))
				continue;
		y = last_before(m->y_start, m->y_off[w->tid], m->y_off[w->tid + 1], w->t);
		if (y >= m->y_off[w->tid] && w->t <= m->y_end[y] && in_sync(w, y, i, floor))
			continue;
		if (i >= base && w->t <= m->w_end[i]) {
			in_wait(w, i, floor, &idle);
			continue;
		}
		lo = max64(floor, i >= base ? m->w_end[i] : m->t_first[w->tid]);
		if (q >= m->q_off[w->tid])
			lo = max64(lo, m->q_ready[q] < w->t ? m->q_ready[q] : m->q_start[q]);
		if (y >= m->y_off[w->tid])
			lo = max64(lo, m->y_end[y] < w->t ? m->y_end[y] : m->y_start[y]);
		take_awake(w, C_CPU, lo, -1, E_NONE, -1);
	}
}

/* Flatten one thread's spans, from row base on; returns the number of pieces. */
static int64_t flatten(int64_t base, int64_t n, const int64_t *start, const int64_t *end,
		       int64_t *out_start, int64_t *out_end, int64_t *out_label)
{
	enum { DEPTH = 64 };
	int64_t stack[DEPTH], stack_end[DEPTH], k = 0, at = 0, i;
	int depth = 0;

	for (i = 0; i <= n; i++) {
		int64_t next = i < n ? start[i] : INT64_MAX;

		while (depth && stack_end[depth - 1] <= next) {
			depth--;
			if (stack_end[depth] > at) {
				out_start[k] = at;
				out_end[k] = stack_end[depth];
				out_label[k++] = base + stack[depth];
				at = stack_end[depth];
			}
		}
		if (i == n)
			break;
		if (depth && next > at) {
			out_start[k] = at;
			out_end[k] = next;
			out_label[k++] = base + stack[depth - 1];
		}
		at = max64(at, next);
		if (depth < DEPTH && end[i] > start[i]) {
			stack[depth] = i;
			stack_end[depth] = depth ? min64(end[i], stack_end[depth - 1]) : end[i];
			depth++;
		}
	}
	return k;
}

/*
 * Flatten spans so that the innermost wins: those of thread k are the rows off[k] to
 * off[k + 1], sorted by start, longer first; label is the row of the span that a piece belongs
 * to. The outputs need room for two pieces a row; out_off is where each thread's begin. Spans
 * that overlap without nesting are cut at their parent's end.
 */
void gpucorrelate_flatten(int64_t n_threads, const int64_t *off, const int64_t *start,
			  const int64_t *end, int64_t *out_off, int64_t *out_start,
			  int64_t *out_end, int64_t *out_label)
{
	int64_t k, t;

	out_off[0] = k = 0;
	for (t = 0; t < n_threads; t++) {
		int64_t base = off[t];

		k += flatten(base, off[t + 1] - base, start + base, end + base, out_start + k,
			     out_end + k, out_label + k);
		out_off[t + 1] = k;
	}
}

/*
 * Walk legs: leg k explains [stop[k], end[k]] ending on actor[k], where that is a stream in op[k];
 * phase cuts of leg k are cuts[cut_off[k]] .. cuts[cut_off[k + 1]]. Returns 0, or -1 when memory
 * ran out.
 */
int gpucorrelate_walk(const struct walk_model *m, int64_t n_legs, const int32_t *actor,
		      const int64_t *op, const int64_t *end, const int64_t *stop,
		      const int64_t *cut_off, const int64_t *cuts, struct walk_out *out)
{
	int64_t k;

	memset(out, 0, sizeof(*out));
	for (k = 0; k < n_legs && !out->failed; k++) {
		struct walker w;

		if (end[k] <= stop[k])
			continue;
		memset(&w, 0, sizeof(w));
		w.m = m;
		w.out = out;
		w.cuts = cuts + cut_off[k];
		w.n_cuts = cut_off[k + 1] - cut_off[k];
		w.t = end[k];
		w.stop = stop[k];
		w.tid = actor[k];
		w.op = op[k];
		w.leg = (int32_t)k;
		w.slack = -1;
		walk_leg(&w);
	}
	return out->failed ? -1 : 0;
}

void gpucorrelate_walk_free(struct walk_out *out)
{
	free(out->segs);
	free(out->hops);
	memset(out, 0, sizeof(*out));
}
