/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Waits: from the switch away from a thread to the switch back, with who woke it in between. */
#ifndef GPC_WAITS_H
#define GPC_WAITS_H

/* Who had the CPU is named (not only numbered) when a woken thread queued longer than this. */
#define GPC_RAN_NAMED_NS 20000

struct gpc_sum_key {
	__u32 tid, tgid, kind;
};

struct gpc_sum {
	__u64 count, sum_ns, runq_ns, max_ns, start_ns, end_ns;
};

struct gpc_sums {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPC_SUM_ENTRIES);
	__type(key, struct gpc_sum_key);
	__type(value, struct gpc_sum);
};

/* Two windows: the tracer reads one while waits are summed into the other. */
struct gpc_sums gpc_sums_even SEC(".maps");
struct gpc_sums gpc_sums_odd SEC(".maps");

static __always_inline void sum_into(struct gpc_sum *v, __u64 start, __u64 now, __u64 runq)
{
	__u64 length = now - start;

	v->count++;
	v->sum_ns += length;
	v->runq_ns += runq;
	v->end_ns = now;
	if (length > v->max_ns)
		v->max_ns = length;
}

static __always_inline bool sum_in(void *map, struct gpc_sum_key *key, __u64 start, __u64 now,
				   __u64 runq)
{
	struct gpc_sum *v = bpf_map_lookup_elem(map, key), fresh = { .start_ns = start };

	if (v) {
		/* No lock: a thread's waits end one at a time. */
		sum_into(v, start, now, runq);
		return true;
	}
	sum_into(&fresh, start, now, runq);
	return !bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST);
}

/* Add a short wait to its thread's sums; false: no room, it has to be streamed. */
static __always_inline bool sum_wait(struct task_struct *task, __u8 kind, __u64 start, __u64 now,
				     __u64 runq)
{
	struct gpc_sum_key key = { task->pid, task->tgid, kind };
	bool done;

	if (gpc_control[GPC_CTL_SUM_WINDOW] & 1)
		done = sum_in(&gpc_sums_odd, &key, start, now, runq);
	else
		done = sum_in(&gpc_sums_even, &key, start, now, runq);
	if (!done)
		count(GPC_CPU_SUMS_FULL);
	return done;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(wait_waking, struct task_struct *task)
{
	struct task_struct *waker;
	struct gpc_state *s;
	__u64 now;
	__s16 nr;

	if (!is_target(task->tgid))
		return 0;
	s = state_of(task);
	if (!s)
		return 0;
	waker = bpf_get_current_task_btf();
	announce_other(waker);
	nr = syscall_of(waker);
	now = bpf_ktime_get_ns();
	if (s->off_ns && !s->wake_ns) {
		s->waker_tid = waker->pid;
		s->waker_tgid = waker->tgid;
		s->waker_nr = nr;
		s->flags |= wake_context(waker, nr);
		s->wake_ns = now;
		return 0;
	}
	/*
	 * Not asleep yet: running, or preempted on its way to sleep. Either it never sleeps (this
	 * is then stale, and its next sleep has a wake of its own) or it falls asleep before the
	 * waker gets further than this tracepoint, and no other wake will be seen.
	 */
	s->early_tid = waker->pid;
	s->early_tgid = waker->tgid;
	s->early_nr = nr;
	s->early_flags = wake_context(waker, nr) | GPC_WF_WAKE_EARLY;
	s->early_ns = now;
	return 0;
}

static __always_inline void wait_begin(struct task_struct *prev, struct task_struct *next,
				       bool preempt, __u64 now)
{
	struct gpc_state *s = state_of(prev);

	if (!s)
		return;
	announce(prev, s);
	s->nr = syscall_of(prev);
	if (s->nr < -1)
		s->nr = -1;
	s->flags = 0;
	if (preempt || !prev->__state) {
		s->kind = s->nr == NR_SCHED_YIELD ? GPC_WAIT_YIELD : GPC_WAIT_PREEMPTED;
		s->arg = s->op = 0;
		s->waker_tid = next->pid;
		s->waker_tgid = next->tgid;
		s->waker_nr = syscall_of(next);
		s->wake_ns = now;
	} else {
		s->waker_tid = s->waker_tgid = 0;
		s->waker_nr = -1;
		s->wake_ns = 0;
		describe(prev, s, true);
	}
	barrier(); /* a waker that sees off_ns must find the rest in place */
	s->off_ns = now;
}

/* Name who ran instead: the last to run if it ran for most of the wait, else the first. */
static __always_inline void wait_blame(struct gpc_state *s, struct task_struct *prev, __u64 length)
{
	__u64 ran = prev->se.sum_exec_runtime - prev->se.prev_sum_exec_runtime;

	if (!prev->pid || (s->waker_tid && 2 * ran < length))
		return;
	s->waker_tid = prev->pid;
	s->waker_tgid = prev->tgid;
	s->waker_nr = syscall_of(prev);
}

/* Settle which wake ended a sleep; whoever delayed it much after that is worth a name. */
static __always_inline void wait_wake(struct gpc_state *s, struct task_struct *prev, __u64 now)
{
	if (!s->wake_ns && s->early_ns) {
		s->wake_ns = s->off_ns;
		s->waker_tid = s->early_tid;
		s->waker_tgid = s->early_tgid;
		s->waker_nr = s->early_nr;
		s->flags |= s->early_flags;
	}
	s->early_ns = 0;
	if (s->wake_ns && now - s->wake_ns > GPC_RAN_NAMED_NS)
		announce_other(prev);
}

static __always_inline void wait_emit(struct task_struct *task, struct gpc_state *s,
				      struct task_struct *ran, __u64 now)
{
	struct gpc_rec *r = rec_reserve(GPC_REC_WAIT, task);

	if (!r)
		return;
	r->start_ns = s->off_ns;
	r->wake_ns = s->wake_ns;
	r->end_ns = now;
	r->arg = s->arg;
	r->op = s->op;
	r->waker_tid = s->waker_tid;
	r->waker_tgid = s->waker_tgid;
	r->syscall = s->nr;
	r->waker_syscall = s->waker_nr;
	r->wait_kind = s->kind;
	r->flags = s->flags;
	r->arg2 = (__u64)ran->tgid << 32 | (__u32)ran->pid;
	rec_submit(r);
}

static __always_inline void wait_end(struct task_struct *next, struct task_struct *prev, __u64 now)
{
	struct gpc_state *s = state_if_any(next);
	__u64 length;

	if (!s || !s->off_ns)
		return;
	length = now - s->off_ns;
	if (s->kind == GPC_WAIT_PREEMPTED || s->kind == GPC_WAIT_YIELD) {
		wait_blame(s, prev, length);
		announce_other(prev);
	} else {
		wait_wake(s, prev, now);
	}
	if (s->fault_ns) {
		s->fault_block_ns += length;
		s->fault_wake_ns = s->wake_ns;
		s->fault_tid = s->waker_tid;
		s->fault_tgid = s->waker_tgid;
	}
	if (length >= gpc_config[GPC_CFG_MIN_WAIT_NS] || s->flags & GPC_WF_START_UNKNOWN ||
	    !sum_wait(next, s->kind, s->off_ns, now, s->wake_ns ? now - s->wake_ns : 0))
		wait_emit(next, s, prev, now);
	s->wake_ns = 0;
	s->off_ns = 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(wait_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	bool leaving = is_target(prev->tgid), coming = is_target(next->tgid);
	__u64 now;

	if (!leaving && !coming)
		return 0;
	now = bpf_ktime_get_ns();
	if (leaving)
		wait_begin(prev, next, preempt, now);
	if (coming)
		wait_end(next, prev, now);
	return 0;
}

#endif
